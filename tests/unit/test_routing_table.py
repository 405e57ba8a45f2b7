"""The routing table as routers use it: the file, and the copy that learns, against a plain dict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.errors import CheckpointCorrupt, CheckpointUnusable
from godwit.model.routing import Routing
from godwit.model.units import Unit
from godwit.runtime.router import routing_table
from godwit.runtime.router.routing_table import OwnerTable, RoutingFile, read_routing, routing_path, write_routing

GROUPS = 4
NAMES = ["a", "b", "c", "d", "e"]
HASHES = np.array(sorted([*range(-9, 10), 2**63 - 1, -(2**63)]), np.int64)

hosts = st.sampled_from(NAMES)
epochs = st.integers(1, 6)
nobody = st.just((None, None))
hints = st.one_of(st.tuples(hosts, epochs), nobody)
group_hints = st.dictionaries(st.integers(0, GROUPS - 1), hints).map(lambda d: [[k, *v] for k, v in d.items()])
key_hints = st.dictionaries(st.sampled_from(HASHES.tolist()), hints).map(lambda d: [[k, *v] for k, v in d.items()])


@st.composite
def routings(draw: st.DrawFn) -> Routing:
    names = draw(st.lists(hosts, min_size=1, unique=True))
    at = st.integers(0, len(names) - 1)
    apart = draw(st.dictionaries(st.sampled_from(HASHES.tolist()), st.tuples(at, epochs)))
    owners = draw(st.tuples(*[at] * GROUPS))
    return Routing(draw(st.integers(1, 9)), tuple(names), owners, draw(st.tuples(*[epochs] * GROUPS)), apart)


class Model:
    """The same in dicts, one line at a time: unit -> (host, epoch)."""

    def __init__(self, routing: Routing) -> None:
        self.groups = {g: (routing.hosts[at], routing.epochs[g]) for g, at in enumerate(routing.owners)}
        self.keys = {key: (routing.hosts[at], epoch) for key, (at, epoch) in routing.apart.items()}

    def of(self, key: int) -> tuple[str, int]:
        return self.keys.get(key, self.groups[key % GROUPS])

    def learn(self, groups: list[list], keys: list[list]) -> None:
        for group, host, epoch in groups:
            if host is not None and epoch > self.groups[group][1]:
                self.groups[group] = host, epoch
        for key, host, epoch in keys:
            if host is not None and (key not in self.keys or epoch > self.keys[key][1]):
                self.keys[key] = host, epoch

    def forget_apart(self, keys: list[int], epoch: int) -> None:
        for key in keys:
            if key in self.keys and self.keys[key][1] < epoch:
                del self.keys[key]

    def absorb(self, other: Model) -> None:
        for key, (_, epoch) in list(self.keys.items()):
            if key not in other.keys and other.groups[key % GROUPS][1] >= epoch:
                del self.keys[key]
        self.learn([[k, *v] for k, v in other.groups.items()], [[k, *v] for k, v in other.keys.items()])

    def correct(self, keys: list[int], denied: list[str], said: Model) -> None:
        wrong = {key % GROUPS for key in keys if self.groups[key % GROUPS][0] in denied}
        for key in keys:
            self.keys.pop(key, None)
            if key in said.keys:
                self.keys[key] = said.keys[key]
            elif key % GROUPS in wrong:
                self.groups[key % GROUPS] = said.groups[key % GROUPS]


def assert_same(table: OwnerTable, model: Model) -> None:
    owners = [table.hosts[at] for at in table.owners(HASHES).tolist()]
    assert list(zip(owners, table.epochs(HASHES).tolist(), strict=True)) == [model.of(key) for key in HASHES.tolist()]
    assert table.apart(HASHES).tolist() == [key in model.keys for key in HASHES.tolist()]


@given(routings(), st.data())
def test_table_is_a_dict_that_takes_what_is_newer(routing: Routing, data: st.DataObject) -> None:
    table, model = OwnerTable(routing), Model(routing)
    assert_same(table, model)
    for _ in range(data.draw(st.integers(0, 6))):
        match data.draw(st.sampled_from(["learn", "forget", "absorb", "correct"])):
            case "learn":
                groups, keys = data.draw(group_hints), data.draw(key_hints)
                table.learn(groups, keys)
                model.learn(groups, keys)
            case "forget":
                keys, epoch = data.draw(st.lists(st.sampled_from(HASHES.tolist()))), data.draw(epochs)
                table.forget_apart(np.array(keys, np.int64), epoch)
                model.forget_apart(keys, epoch)
            case "absorb":
                other = data.draw(routings())
                table.absorb(OwnerTable(other))
                model.absorb(Model(other))
            case "correct":
                said, denied = data.draw(routings()), data.draw(st.lists(st.sampled_from(table.hosts)))
                keys = data.draw(st.lists(st.sampled_from(HASHES.tolist())))
                positions = [table.position(host) for host in denied]
                table.correct(np.array(keys, np.int64), positions, OwnerTable(said))
                model.correct(keys, denied, Model(said))
        assert_same(table, model)


@given(routings(), group_hints, key_hints)
def test_copy_learns_alone(routing: Routing, groups: list[list], keys: list[list]) -> None:
    table = OwnerTable(routing)
    table.copy().learn(groups, keys)
    table.copy().forget_apart(HASHES, 9)
    table.copy().correct(HASHES, range(len(table.hosts)), table.hints([[0, "e", 1]] * 4, [[k, "e", 9] for k in HASHES]))
    assert table.hosts == list(routing.hosts)
    assert_same(table, Model(routing))


@given(routings(), group_hints, key_hints)
def test_hints_alone_say_nothing_of_the_rest(routing: Routing, groups: list[list], keys: list[list]) -> None:
    said = OwnerTable(routing).hints(groups, keys)
    group_of = {group: host for group, host, _ in groups}
    key_of = {key: host for key, host, _ in keys if host is not None}
    found = [None if at < 0 else said.hosts[at] for at in said.owners(HASHES).tolist()]
    assert found == [key_of.get(key, group_of.get(key % GROUPS)) for key in HASHES.tolist()]


# -- the file --------------------------------------------------------------------------------------------------------


def test_file_gives_back_what_was_written(tmp_path: Path) -> None:
    routing = Routing.spread(NAMES, 16).moved({Unit("key", -5): 2, Unit("group", 3): 4}, "c")
    assert read_routing(str(tmp_path), "count") is None
    write_routing(str(tmp_path), "count", routing)
    assert read_routing(str(tmp_path), "count") == routing
    assert read_routing(str(tmp_path), "other") is None
    assert [path.name for path in routing_path(str(tmp_path), "count").parent.iterdir()] == ["count.mp"]


def test_file_is_parsed_once_until_it_is_replaced(tmp_path: Path) -> None:
    write_routing(str(tmp_path), "count", Routing.spread(["a", "b"], 16))
    first = read_routing(str(tmp_path), "count")
    assert read_routing(str(tmp_path), "count") is first
    # Of the same size, and perhaps within the same tick of the file system's clock.
    write_routing(str(tmp_path), "count", Routing.spread(["a", "c"], 16))
    second = read_routing(str(tmp_path), "count")
    assert second is not None
    assert second.hosts == ("a", "c")


def test_tables_of_the_file_are_the_readers_own(tmp_path: Path) -> None:
    write_routing(str(tmp_path), "count", Routing.spread(["a", "b"], 16))
    file = RoutingFile(str(tmp_path), "count")
    one, two = file.table(), file.table()
    assert one is not None
    assert two is not None
    one.learn([[0, "z", 9]], [])
    assert two.hosts == ["a", "b"]
    assert two.owners(np.array([0])).tolist() == [0]


def test_operator_that_never_moves_has_no_file(tmp_path: Path) -> None:
    write_routing(str(tmp_path), "count", Routing.spread(["a", "b"], 16))
    file = RoutingFile(str(tmp_path), "count", moves=False)
    assert file.read() is None
    assert file.table() is None


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\xa7version\x01"])
def test_file_that_is_no_table_is_reported_by_name(tmp_path: Path, content: bytes) -> None:
    path = routing_path(str(tmp_path), "count")
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(CheckpointCorrupt, match=r"count\.mp"):
        read_routing(str(tmp_path), "count")


def test_directory_that_is_gone_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnusable, match=r"count\.mp"):
        write_routing(str(tmp_path / "gone" / "away"), "count", Routing.spread(["a"], 16))


def test_keys_apart_cost_nothing_when_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: OwnerTable, hashes: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(routing_table.OwnerTable, "_find", never)
    assert OwnerTable(Routing.spread(["a", "b"], 4)).owners(HASHES).tolist() == [int(h % 4 >= 2) for h in HASHES]

"""Routers whose table is old: refused rows reach their owner, once and in order, whatever moved in the meantime.

Hosts here are stand-ins in this process that speak the wire format. Moving a group between them takes no time, and a test says
before which chunk it happens; what they apply, and in which order, is written down.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from godwit.errors import HostUnavailable, NotReplayable
from godwit.model.progress import BatchRef
from godwit.model.refusals import Refusals
from godwit.model.routing import Routing
from godwit.model.units import Unit
from godwit.runtime.liveness.leases import Lease, end_lease, host_directory, write_lease
from godwit.runtime.messages import (
    ApplyRows,
    FinishLane,
    LaneFinished,
    LaneOpened,
    OpenLane,
    OwnerHint,
    RefusedRows,
    RowsApplied,
)
from godwit.runtime.router.route import Route, Task
from godwit.runtime.router.router import IN_FLIGHT_MAX, Router
from godwit.runtime.router.routing_table import write_routing
from godwit.state.ledger import with_rows
from godwit.transport import typed, wire
from godwit.transport.flight import Service
from godwit.transport.typed import Message

GROUPS = 8
INPUT = pa.schema([("key", pa.int64()), ("n", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("n", pa.int64())])
OPERATOR = "count"
TOKEN = "token"
Hint = tuple[str | None, int | None]


def rows(numbers: range, keys: int = GROUPS) -> pa.RecordBatch:
    """Keys are their own routing hashes, so with as many keys as groups a key is alone in its group."""
    n = list(numbers)
    key = [number % keys for number in n]
    return pa.RecordBatch.from_pydict({"key": key, "n": n, "hash": key}, pa.schema([*INPUT, ("hash", pa.int64())]))


def windows(count: int, size: int = GROUPS, keys: int = GROUPS) -> list[pa.RecordBatch]:
    return [rows(range(at * size, at * size + size), keys) for at in range(count)]


class Broken(Exception):
    """Ends a stream without an answer, as a host does that dies."""


@dataclass
class Sky:
    """What all stand-ins share: state and ledger, which move with their keys at once, and what happened."""

    checkpoint: Path
    lock: threading.RLock = field(default_factory=threading.RLock)
    hosts: dict[str, StandIn] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    ledger: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    applied: list[tuple[str, int, int]] = field(default_factory=list)  # (host, key, n)

    def start(self, *names: str) -> None:
        for name in names:
            self.hosts[name] = StandIn(name, self)

    def move(self, group: int, to: str) -> None:
        """Only the two hosts that take part learn of it."""
        with self.lock:
            origin = next(host for host in self.hosts.values() if host.view[group][0] == host.name)
            _, epoch = origin.view[group]
            assert epoch is not None
            origin.view[group] = self.hosts[to].view[group] = (to, epoch + 1)

    def run(self, routing: Routing, given: Any, scope: str | None = None, wait_s: float = 20.0) -> list[dict[str, Any]]:
        route = Route(
            operator=OPERATOR,
            checkpoint=str(self.checkpoint),
            routing=routing,
            output_schema=OUTPUT,
            key_names=("key",),
            token=TOKEN,
            gather=False,
            wait_s=wait_s,
        )
        router = Router(route, Task(BatchRef("query", "run", 0), "0", scope))
        return [row for batch in router.run(given, INPUT) for row in batch.to_pylist()]

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()


class StandIn:
    """A host whose groups have owners as it thinks; keys that it thinks apart from their group are in `apart`."""

    def __init__(self, name: str, sky: Sky) -> None:
        self.name = name
        self.sky = sky
        self.view: dict[int, Hint] = dict.fromkeys(range(GROUPS), (None, None))
        self.apart: dict[int, Hint] = {}
        self.also: list[str] = []
        self.carried: list[bool] = []
        self.before: Callable[[int], None] = lambda _: None  # called before a chunk is looked at, with its number
        self.after: Callable[[int], None] = lambda _: None  # called when it is applied and not answered yet
        self.received: list[Message] = []
        self.refused: list[int] = []  # how many rows of each chunk
        self.opened = 0
        self.generation = 0
        self.services: list[Service] = []
        self.restart()

    def restart(self) -> None:
        self.generation += 1
        service = Service("127.0.0.1", TOKEN, {}, self._exchange)
        self.services.append(service)
        directory = host_directory(str(self.sky.checkpoint), self.name)
        directory.mkdir(parents=True, exist_ok=True)
        write_lease(directory, Lease(self.generation, f"127.0.0.1:{service.ports}", 1))

    def leave(self) -> None:
        end_lease(host_directory(str(self.sky.checkpoint), self.name), self.generation)

    def close(self) -> None:
        for service in self.services:
            service.stop(5)

    def chunks(self) -> list[ApplyRows]:
        return [message for message in self.received if isinstance(message, ApplyRows)]

    def finishes(self) -> list[FinishLane]:
        return [message for message in self.received if isinstance(message, FinishLane)]

    def _exchange(self, header: dict[str, Any], reader: Any, writer: Any) -> None:
        writer.begin(with_rows(OUTPUT))
        with self.sky.lock:
            self.opened += 1
            self.carried.append(typed.from_header(header, OpenLane).carries)
            writer.write_metadata(typed.pack(LaneOpened(0, self.generation)))
        refusals, answers = Refusals(), 0
        while True:
            try:
                received = reader.read_chunk()
            except StopIteration:
                return
            message = typed.unpack(received.app_metadata, ApplyRows, FinishLane)
            try:
                with self.sky.lock:
                    self.received.append(message)
                    if not isinstance(message, ApplyRows):
                        writer.write_metadata(typed.pack(LaneFinished(tuple(self.also))))
                        return
                    answers += 1
                    self._chunk(message, received.data, refusals, answers, writer)
            except NotReplayable as error:
                writer.write_metadata(wire.pack_error(error))
                return
            except Broken as broken:
                raise flight.FlightUnavailableError("gone") from broken

    def _chunk(self, message: ApplyRows, data: pa.RecordBatch, refusals: Refusals, answer: int, writer: Any) -> None:
        number = len(self.chunks())
        self.before(number)
        refusals.dealt_with(message.seen)
        outputs, refused = [], []
        for row in data.to_pylist():
            at, key, hash_ = row[wire.ROW], row["key"], row[wire.HASH]
            if self._hint(hash_)[0] != self.name or (hash_ in refusals and not message.again):
                refused.append((at, hash_))
            else:
                outputs.append({"__godwit_row": at} | self._apply(message.lane, at, key, row["n"]))
        refusals.add(answer, [hash_ for _, hash_ in refused])
        self.refused.append(len(refused))
        self.after(number)
        answered = typed.pack(RowsApplied(0, self._refusal(refused) if refused else None))
        writer.write_with_metadata(pa.RecordBatch.from_pylist(outputs, with_rows(OUTPUT)), answered)

    def _hint(self, hash_: int) -> Hint:
        return self.apart.get(hash_, self.view[hash_ % GROUPS])

    def _refusal(self, refused: list[tuple[int, int]]) -> RefusedRows:
        hashes = {hash_ for _, hash_ in refused}
        groups = {hash_ % GROUPS for hash_ in hashes - self.apart.keys()}
        return RefusedRows(
            [at for at, _ in refused],
            tuple(OwnerHint(group, *self.view[group]) for group in sorted(groups)),
            tuple(OwnerHint(key, *self.apart[key]) for key in sorted(hashes & self.apart.keys())),
        )

    def _apply(self, lane: str, at: int, key: int, n: int) -> dict[str, Any]:
        if (lane, at) not in self.sky.ledger:
            self.sky.counts[key] += 1
            self.sky.ledger[lane, at] = key, self.sky.counts[key], n
            self.sky.applied.append((self.name, key, n))
        return dict(zip(OUTPUT.names, self.sky.ledger[lane, at], strict=True))


@pytest.fixture
def sky(tmp_path: Path) -> Iterator[Sky]:
    sky = Sky(tmp_path)
    yield sky
    sky.close()


def begin(sky: Sky, routing: Routing, *more: str) -> None:
    """Hosts that agree with a table, and further ones that own nothing and know nothing."""
    sky.start(*routing.hosts, *more)
    for name in routing.hosts:
        sky.hosts[name].view = {
            group: (routing.hosts[at], routing.epochs[group]) for group, at in enumerate(routing.owners)
        }


def assert_exact(sky: Sky, outputs: list[dict[str, Any]], given: list[pa.RecordBatch]) -> None:
    """Every row once, in the order of the input, each key counting 1, 2, 3 ...; and applied in that order too."""
    count: Counter[int] = Counter()
    truth = []
    for batch in given:
        for row in batch.to_pylist():
            count[row["key"]] += 1
            truth.append({"key": row["key"], "count": count[row["key"]], "n": row["n"]})
    assert outputs == truth
    order: dict[int, list[int]] = defaultdict(list)
    for _, key, n in sky.applied:
        order[key].append(n)
    assert all(numbers == sorted(numbers) for numbers in order.values())


TWO = Routing.spread(["host-0", "host-1"], GROUPS)
LOWER, UPPER = range(4), range(4, 8)  # groups of host-0 and of host-1


# -- an old table ----------------------------------------------------------------------------------------------------


def test_old_table_costs_one_round_for_windows_in_flight_and_none_after(sky: Sky) -> None:
    begin(sky, TWO, "host-2")
    for group in UPPER:
        sky.move(group, "host-2")
    given = windows(10)
    assert_exact(sky, sky.run(TWO, given), given)
    assert len(sky.hosts["host-1"].chunks()) == IN_FLIGHT_MAX
    assert [note.again for note in sky.hosts["host-2"].chunks()] == [True] * IN_FLIGHT_MAX + [False] * 7
    assert sky.hosts["host-0"].refused == [0] * 10
    assert sky.hosts["host-2"].refused == [0] * 10


def test_hints_are_followed_from_host_to_host(sky: Sky) -> None:
    begin(sky, TWO, "host-2", "host-3", "host-4")
    for to in ("host-2", "host-3", "host-4"):
        for group in UPPER:
            sky.move(group, to)
    given = windows(5)
    assert_exact(sky, sky.run(TWO, given), given)
    assert len(sky.hosts["host-2"].chunks()) == 1, "windows in flight go straight to the end of the chain"
    assert len(sky.hosts["host-4"].chunks()) == 5


def test_file_that_is_newer_than_the_route_saves_the_round(sky: Sky) -> None:
    begin(sky, TWO, "host-2")
    for group in UPPER:
        sky.move(group, "host-2")
    moved = {Unit("group", group): 2 for group in UPPER}
    write_routing(str(sky.checkpoint), OPERATOR, TWO.joined(["host-2"]).moved(moved, "host-2"))
    given = windows(4)
    assert_exact(sky, sky.run(TWO, given), given)
    assert not sky.hosts["host-1"].chunks()
    assert not any(note.again for note in sky.hosts["host-2"].chunks())
    assert sky.hosts["host-1"].opened == 1, "it is in the file, so the batch concerns it"


def test_batch_dataframe_goes_by_its_own_table(sky: Sky) -> None:
    begin(sky, TWO, "host-2")
    moved = {Unit("group", group): 2 for group in UPPER}
    write_routing(str(sky.checkpoint), OPERATOR, TWO.joined(["host-2"]).moved(moved, "host-2"))
    given = windows(2)
    assert_exact(sky, sky.run(TWO, given, scope="scope-1"), given)
    assert sky.hosts["host-2"].opened == 0


def test_one_refusal_reads_the_file_and_learns_of_all_groups(sky: Sky) -> None:
    begin(sky, TWO, "host-2")

    def moved_before_the_first_chunk(number: int) -> None:
        if number == 1:
            for group in UPPER:
                sky.move(group, "host-2")
            moved = {Unit("group", group): 2 for group in UPPER}
            write_routing(str(sky.checkpoint), OPERATOR, TWO.joined(["host-2"]).moved(moved, "host-2"))

    sky.hosts["host-1"].before = moved_before_the_first_chunk
    one_group = [rows(range(at, at + 1)) for at in (4, 12, 20)]
    given = [*one_group, *windows(6)[3:]]
    assert_exact(sky, sky.run(TWO, given), given)
    assert len(sky.hosts["host-1"].chunks()) == IN_FLIGHT_MAX


def test_host_that_only_the_file_tells_of_is_opened_when_a_row_is_for_it(sky: Sky) -> None:
    begin(sky, TWO, "host-2", "host-3")

    def before(number: int) -> None:
        if number == 1:
            sky.move(4, "host-2")
        if number == IN_FLIGHT_MAX:  # too late for the windows in flight, which have no row of it
            sky.move(5, "host-3")
            joined = TWO.joined(["host-2", "host-3"])
            moved = joined.moved({Unit("group", 4): 2}, "host-2").moved({Unit("group", 5): 2}, "host-3")
            write_routing(str(sky.checkpoint), OPERATOR, moved)

    sky.hosts["host-1"].before = before
    given = [*(rows(range(at, at + 1)) for at in (4, 12, 20)), *windows(6)[3:]]
    assert_exact(sky, sky.run(TWO, given), given)
    assert [note.again for note in sky.hosts["host-3"].chunks()] == [False] * 3


# -- order -----------------------------------------------------------------------------------------------------------


def test_group_that_goes_and_comes_back_between_windows_keeps_its_order(sky: Sky) -> None:
    begin(sky, TWO, "host-2")
    a = sky.hosts["host-1"]
    moves = {1: "host-2", 2: "host-1"}  # gone when the first window comes, back when the second does

    def before(number: int) -> None:
        if number in moves:
            sky.move(4, moves[number])

    a.before = before
    given = windows(8)
    assert_exact(sky, sky.run(TWO, given), given)
    assert a.refused[:3] == [1, 1, 1], "what was refused once stays refused until the router has caught up"
    fresh = [note for note in a.chunks() if not note.again]
    assert len(fresh) == 8
    assert [note.seen for note in fresh[:3]] == [0, 0, 0]
    assert fresh[3].seen == 6, "three windows, each with a round back to it"
    assert a.refused[-5:] == [0] * 5
    assert {(host, n) for host, key, n in sky.applied if key == 4} == {("host-1", 4 + 8 * at) for at in range(8)}


def test_loan_that_is_taken_back_ends_at_the_origin_though_no_epoch_tells(sky: Sky) -> None:
    begin(sky, TWO, "host-2")
    origin, target = sky.hosts["host-1"], sky.hosts["host-2"]
    origin.view[4] = ("host-2", 1)  # lent: the epoch stays

    def taken_back(number: int) -> None:
        origin.view[4], target.view[4] = ("host-1", 1), ("host-1", 1)

    target.before = taken_back
    given = windows(6)
    assert_exact(sky, sky.run(TWO, given), given)
    assert all(host == "host-1" for host, key, _ in sky.applied if key == 4)
    assert sum(target.refused) == IN_FLIGHT_MAX, "each window in flight asks it once"


def test_rows_behind_a_refused_one_are_held_back_from_a_restarted_host(sky: Sky) -> None:
    """The host lent the key, refused it, and restarted without knowing of the loan, with later rows unanswered."""
    begin(sky, TWO, "host-2")
    origin, target = sky.hosts["host-1"], sky.hosts["host-2"]
    origin.view[4] = ("host-2", 2)
    target.view[4] = ("host-1", 1)

    def dies_at_the_second(number: int) -> None:
        if number == 2:
            origin.view[4] = ("host-1", 1)
            origin.restart()
            raise Broken

    origin.before = dies_at_the_second
    given = windows(6)
    assert_exact(sky, sky.run(TWO, given), given)
    assert origin.opened == 2
    # One that was answered, one that broke the stream, and two that are said again on a stream that starts counting anew.
    assert [note.seen for note in origin.chunks()[:4]] == [0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(12))
def test_groups_that_move_all_the_time_keep_every_row_once_and_in_order(sky: Sky, seed: int) -> None:
    chance = random.Random(seed)
    names = ["host-0", "host-1", "host-2", "host-3"]
    begin(sky, TWO, *names[2:])
    budget = iter(range(60))  # moves end some time, or a window might be sent round for ever

    def before(number: int) -> None:
        for _ in range(chance.randrange(4)):
            if next(budget, None) is not None:
                sky.move(chance.randrange(GROUPS), chance.choice(names))

    for host in sky.hosts.values():
        host.before = before
    given = windows(15, size=20, keys=24)
    assert_exact(sky, sky.run(TWO, given), given)
    assert sum(sum(host.refused) for host in sky.hosts.values()) > 20


# -- hosts that leave, join, or do not know --------------------------------------------------------------------------


def without_host_1(sky: Sky) -> None:
    moved = {Unit("group", group): 2 for group in UPPER}
    write_routing(str(sky.checkpoint), OPERATOR, TWO.moved(moved, "host-0").parted(["host-1"]))
    for group in UPPER:
        sky.move(group, "host-0")
    sky.hosts["host-1"].leave()


@pytest.mark.parametrize("when", ["before", "after"])
def test_host_that_left_is_retired_and_its_rows_go_to_their_new_owner(sky: Sky, when: str) -> None:
    """`after`: it had applied the chunk that it did not answer, so the new owner has it in the ledger."""
    begin(sky, TWO)

    def leaves_at_the_third(number: int) -> None:
        if number == 3:
            without_host_1(sky)
            raise Broken

    setattr(sky.hosts["host-1"], when, leaves_at_the_third)
    given = windows(8)
    assert_exact(sky, sky.run(TWO, given), given)
    assert not sky.hosts["host-1"].finishes()
    assert len(sky.hosts["host-0"].finishes()) == 1


def test_hint_at_a_host_that_has_left_ends_in_the_file(sky: Sky) -> None:
    three = TWO.joined(["host-2"])
    begin(sky, three)
    sky.move(4, "host-2")
    sky.move(4, "host-0")
    write_routing(str(sky.checkpoint), OPERATOR, three)

    def leaves(number: int) -> None:
        if number == 1:
            sky.hosts["host-2"].leave()
            left = three.moved({Unit("group", 4): 3}, "host-0").parted(["host-2"])
            write_routing(str(sky.checkpoint), OPERATOR, left)

    sky.hosts["host-1"].before = leaves
    given = windows(4)
    assert_exact(sky, sky.run(TWO, given), given)


def test_router_waits_for_a_host_of_its_table_that_is_not_up_yet(sky: Sky) -> None:
    begin(sky, TWO)
    write_routing(str(sky.checkpoint), OPERATOR, TWO)
    sky.hosts["host-1"].leave()
    with pytest.raises(HostUnavailable, match=r"host-1 has not served for 0\.3 s"):
        sky.run(TWO, windows(2), wait_s=0.3)
    sky.hosts["host-1"].restart()
    given = windows(2)
    assert_exact(sky, sky.run(TWO, given), given)


def test_rows_of_unknown_owner_wait_until_the_file_says_who_it_is(sky: Sky) -> None:
    begin(sky, TWO, "host-2")
    sky.move(4, "host-2")
    sky.hosts["host-1"].view[4] = (None, None)
    write_routing(str(sky.checkpoint), OPERATOR, TWO)
    polled = threading.Event()

    def write() -> None:
        polled.wait(20)
        write_routing(str(sky.checkpoint), OPERATOR, TWO.joined(["host-2"]).moved({Unit("group", 4): 2}, "host-2"))

    sky.hosts["host-1"].after = lambda _: polled.set()
    writer = threading.Thread(target=write)
    writer.start()
    given = windows(5)
    outputs = sky.run(TWO, given)
    writer.join()
    assert_exact(sky, outputs, given)


def test_rows_that_nobody_takes_end_in_an_error_that_names_their_group(sky: Sky) -> None:
    begin(sky, TWO)
    sky.hosts["host-1"].view[5] = (None, None)
    with pytest.raises(HostUnavailable, match=r"group 5 .* host-1 refused .*operator=count.*flock.routing\('count'\)"):
        sky.run(TWO, windows(2), wait_s=0.3)


def test_hosts_that_send_rows_in_a_circle_end_in_an_error(sky: Sky) -> None:
    begin(sky, TWO)
    sky.hosts["host-1"].view[5] = ("host-0", 7)
    sky.hosts["host-0"].view[5] = ("host-1", 8)
    with pytest.raises(HostUnavailable, match="group 5"):
        sky.run(TWO, windows(1), wait_s=0.3)
    assert len(sky.hosts["host-1"].chunks()) < 50, "hosts are given time to agree"


def test_hosts_that_joined_are_opened_and_finished_too(sky: Sky) -> None:
    begin(sky, TWO, "host-2", "host-3")
    sky.hosts["host-0"].also = ["host-1", "host-2"]
    sky.hosts["host-2"].also = ["host-0", "host-3"]
    given = windows(2)
    outputs = sky.run(TWO, given)
    assert_exact(sky, outputs, given)
    assert {name: host.carried for name, host in sky.hosts.items()} == {
        "host-0": [True],
        "host-1": [True],
        "host-2": [False],
        "host-3": [False],
    }, "outputs of timers leave before all rows, so only those who are known from the start give theirs"
    finishes = {name: [list(note.hosts) for note in host.finishes()] for name, host in sky.hosts.items()}
    two = ["host-0", "host-1"]
    assert finishes == {
        "host-0": [two],
        "host-1": [two],
        "host-2": [[*two, "host-2"]],
        "host-3": [[*two, "host-2", "host-3"]],
    }


def test_error_from_all_hosts_at_once_reaches_the_caller(sky: Sky) -> None:
    """Many times: a stream that both sides end at the same moment is a race, which once killed the process."""
    begin(sky, TWO)

    def fails(number: int) -> None:
        raise NotReplayable("not this time")

    for host in sky.hosts.values():
        host.before = fails
    for _ in range(100):
        with pytest.raises(NotReplayable, match=r"not this time .*operator=count, batch=0, lane=0"):
            sky.run(TWO, windows(1))


# -- keys routed apart -----------------------------------------------------------------------------------------------


def test_key_apart_in_the_table_goes_to_its_owner_at_once(sky: Sky) -> None:
    table = replace(TWO.joined(["host-2"]), apart={4 + GROUPS: (2, 2)})
    begin(sky, table)
    sky.hosts["host-2"].apart = {4 + GROUPS: ("host-2", 2)}
    given = windows(4, size=16, keys=16)
    assert_exact(sky, sky.run(table, given), given)
    assert {host for host, key, _ in sky.applied if key == 4 + GROUPS} == {"host-2"}
    assert {host for host, key, _ in sky.applied if key == 4} == {"host-1"}
    assert not any(sum(host.refused) for host in sky.hosts.values())


def test_key_that_was_moved_apart_is_learnt_without_its_group(sky: Sky) -> None:
    begin(sky, TWO, "host-2")
    hot = 4 + GROUPS
    sky.hosts["host-1"].apart = sky.hosts["host-2"].apart = {hot: ("host-2", 2)}
    given = windows(6, size=16, keys=16)
    assert_exact(sky, sky.run(TWO, given), given)
    assert sum(sky.hosts["host-1"].refused) == IN_FLIGHT_MAX
    assert {host for host, key, _ in sky.applied if key == hot} == {"host-2"}
    assert {host for host, key, _ in sky.applied if key == 4} == {"host-1"}


def test_key_that_went_back_to_its_group_is_forgotten_as_apart(sky: Sky) -> None:
    table = replace(TWO.joined(["host-2"]), apart={4 + GROUPS: (2, 2)})
    begin(sky, table)
    for host in ("host-1", "host-2"):
        sky.hosts[host].view[4] = ("host-1", 3)
    given = windows(6, size=16, keys=16)
    assert_exact(sky, sky.run(table, given), given)
    assert sum(sky.hosts["host-2"].refused) == IN_FLIGHT_MAX
    assert {host for host, key, _ in sky.applied if key % GROUPS == 4} == {"host-1"}

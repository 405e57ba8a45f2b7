"""Keys move between real hosts while rows flow through real routers: same outputs and state, whatever the protocol."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import godwit
from godwit.migration import PROTOCOLS
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.host.host import Host
from godwit.runtime.messages import AdoptMarks, GetMarks, GetStatus, SetRoster, Stop
from godwit.runtime.router.routing_table import write_routing
from godwit.transport import typed
from tests.integration.nest import OPERATOR, Nest, route_hash, rows
from tests.spark.flocks import Count, wait_until

KEYS = 500
GROUPS = 64
CHUNK = 250
# A host that was killed no longer knows the migrations it had begun.
OVER = ("ended", "unknown")


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Nest(tmp_path / "godwit", hosts=2).start_all()
    yield nest
    nest.close()


def migrate(
    nest: Nest,
    origin: str,
    target: str,
    protocol: str,
    steps: list[dict[str, Any]],
    id_: str = "m1",
    **options: Any,
) -> None:
    client = nest.client(origin)
    units = tuple(Units.from_dict(step) for step in steps)
    typed.ask(client, messages.StartMigration(id_, OPERATOR, target, protocol, units, **options))
    client.close()


def report(nest: Nest, origin: str, id_: str = "m1") -> messages.MigrationReport:
    client = nest.client(origin)
    try:
        return typed.ask(client, messages.ReportMigration(id_, 0.5))
    finally:
        client.close()


def ended(nest: Nest, origin: str, id_: str = "m1") -> messages.MigrationReport:
    wait_until(lambda: report(nest, origin, id_).state == "ended", what="the migration has ended")
    return report(nest, origin, id_)


def groups_of(nest: Nest, host: str) -> list[int]:
    client = nest.client(host)
    ownership = typed.ask(client, messages.ReportOwnership(OPERATOR)).ownership
    assert ownership is not None
    stands = ownership["groups"]["stands"]
    client.close()
    return [group for group, stand in enumerate(stands) if stand == "0"]


def chunks(batch: int, count: int) -> Iterator[pa.RecordBatch]:
    for at in range(count):
        begin = (batch * count + at) * CHUNK
        yield rows(range(begin, begin + CHUNK), KEYS)


class Checked:
    """Every key must give 1, 2, 3 ... in order."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def take(self, outputs: Iterator[dict[str, Any]]) -> None:
        for row in outputs:
            key = row["key"]
            assert row["count"] == self.counts.get(key, 0) + 1, (
                f"key {key}: {row['count']} after {self.counts.get(key, 0)}"
            )
            self.counts[key] = row["count"]


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_groups_move_while_rows_flow(nest: Nest, protocol: str) -> None:
    seen = Checked()
    seen.take(nest.run(0, "0", chunks(0, 8)))
    moving = groups_of(nest, "host-0")[::2]
    steps = [{"groups": [group], "keys": []} for group in moving]
    if protocol in ("pause", "live", "live-unordered"):
        steps = [{"groups": moving, "keys": []}]
    migrate(nest, "host-0", "host-1", protocol, steps)
    if protocol == "standby":
        client = nest.client("host-0")
        seen.take(nest.run(1, "0", chunks(1, 8)))
        typed.ask(client, messages.HandOverStandby("m1"))
        client.close()
    else:
        seen.take(nest.run(1, "0", chunks(1, 40)))
    told = ended(nest, "host-0")
    assert told.dropped == 0, told
    assert len(told.moved) == len(moving), told
    assert set(moving) <= set(groups_of(nest, "host-1"))
    before = dict(seen.counts)
    total = sum(before.values()) // CHUNK
    seen.take(nest.run(2, "0", (rows(range((total + i) * CHUNK, (total + i + 1) * CHUNK), KEYS) for i in range(4))))
    assert nest.state(2) == seen.counts


class Flow:
    """Batches one after another in a thread of its own, every key checked, until it is told to end."""

    def __init__(self, nest: Nest, keys: int = KEYS, rows_per_batch: int = 2 * CHUNK) -> None:
        self.seen = Checked()
        self.batch = 0
        self.error: BaseException | None = None
        self._nest = nest
        self._keys = keys
        self._size = rows_per_batch
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.wait_batches(2)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                begin = self.batch * self._size
                numbers = range(begin, begin + self._size)
                chunked = [rows(numbers[:CHUNK], self._keys), rows(numbers[CHUNK:], self._keys)]
                self.seen.take(self._nest.run(self.batch, "0", iter(chunked)))
                self.batch += 1
        except BaseException as error:  # noqa: BLE001 shown by whoever waits
            self.error = error

    def wait_batches(self, count: int) -> None:
        upto = self.batch + count
        wait_until(lambda: self.batch >= upto or self.error is not None, what=f"{count} more batches")
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        self._ending.set()
        self._thread.join(60)
        if self.error is not None:
            raise self.error


def owners(nest: Nest) -> dict[int, str]:
    """Who owns which group. The hosts are asked one after another, so no migration may be under way."""
    found: dict[int, str] = {}
    for host in nest.routing.hosts:
        for group in groups_of(nest, host):
            assert group not in found, f"group {group} is owned by {found[group]} and {host}"
            found[group] = host
    return found


def kills() -> Iterator[Any]:
    """Every protocol with its origin killed and with its target killed; half of them only in the long run."""
    for at, protocol in enumerate(sorted(PROTOCOLS)):
        for killed in range(2):
            marks = [pytest.mark.long] if (at + killed) % 2 else []
            yield pytest.param(protocol, f"host-{killed}", marks=marks)


@pytest.mark.parametrize(("protocol", "killed"), list(kills()))
def test_a_host_killed_during_a_migration(nest: Nest, protocol: str, killed: str) -> None:
    flow = Flow(nest)
    moving = groups_of(nest, "host-0")
    steps = [{"groups": moving[at : at + 4], "keys": []} for at in range(0, len(moving), 4)]
    migrate(nest, "host-0", "host-1", protocol, steps)
    if protocol == "standby":
        wait_until(lambda: report(nest, "host-0").bytes > 0, what="copies")
        client = nest.client("host-0")
        typed.ask(client, messages.HandOverStandby("m1"))
        client.close()
    nest.kill(killed)
    nest.start(killed)
    flow.wait_batches(3)
    flow.end()
    wait_until(lambda: report(nest, "host-0").state in OVER, what="the migration is over")
    wait_until(lambda: len(owners(nest)) == GROUPS, what="every group has an owner")
    assert nest.state(flow.batch - 1) == flow.seen.counts


def test_keys_go_to_and_fro_while_rows_flow(nest: Nest) -> None:
    flow = Flow(nest)
    both = groups_of(nest, "host-0")[:8]
    hosts = ["host-0", "host-1"]
    for turn in range(12):
        protocol = sorted(set(PROTOCOLS) - {"standby"})[turn % 5]
        steps = [{"groups": both[at : at + 4], "keys": []} for at in (0, 4)]
        migrate(nest, hosts[turn % 2], hosts[1 - turn % 2], protocol, steps, f"turn-{turn}")
        told = ended(nest, hosts[turn % 2], f"turn-{turn}")
        assert (len(told.moved), told.dropped) == (8, 0), told
    flow.wait_batches(2)
    flow.end()
    assert nest.state(flow.batch - 1) == flow.seen.counts


def test_single_keys_move_apart_from_their_group_and_back(nest: Nest) -> None:
    flow = Flow(nest)
    keys = [key for key in range(KEYS) if route_hash(key) % GROUPS in groups_of(nest, "host-0")][:10]
    steps = [{"groups": [], "keys": [route_hash(key) for key in keys]}]
    migrate(nest, "host-0", "host-1", "live", steps, "out")
    assert ended(nest, "host-0", "out").done == 1
    moved = groups_of(nest, "host-0")
    migrate(nest, "host-0", "host-1", "push", [{"groups": moved, "keys": []}], "rest")
    assert ended(nest, "host-0", "rest").done == 1
    migrate(nest, "host-1", "host-0", "pause", [{"groups": moved[:3], "keys": steps[0]["keys"][:4]}], "back")
    assert ended(nest, "host-1", "back").done == 1
    flow.wait_batches(2)
    flow.end()
    assert nest.state(flow.batch - 1) == flow.seen.counts


def test_an_aborted_migration_stays_where_it_was(nest: Nest) -> None:
    flow = Flow(nest)
    migrate(nest, "host-0", "host-1", "standby", [{"groups": groups_of(nest, "host-0"), "keys": []}])
    wait_until(lambda: report(nest, "host-0").bytes > 0, what="copies")
    before = owners(nest)
    client = nest.client("host-0")
    typed.ask(client, messages.AbortMigration("m1", "not today"))
    client.close()
    told = ended(nest, "host-0")
    assert (told.done, told.dropped, told.reason) == (0, 1, "not today")
    flow.wait_batches(2)
    flow.end()
    assert owners(nest) == before
    assert nest.state(flow.batch - 1) == flow.seen.counts
    wait_until(lambda: sum(keys_on(nest).values()) == KEYS, what="no copies are left")


def keys_on(nest: Nest) -> dict[str, int]:
    found = {}
    for host in nest.routing.hosts:
        client = nest.client(host)
        found[host] = typed.ask(client, GetStatus()).instances[0]["keys"]
        client.close()
    return found


def join(nest: Nest, host: str) -> None:
    """What a flock does when it gets another host."""
    nest.start(host)
    donor, new = nest.client(nest.routing.hosts[0]), nest.client(host)
    typed.ask(new, AdoptMarks(typed.ask(donor, GetMarks()).marks))
    nest.routing = nest.routing.joined([host])
    write_routing(str(nest.checkpoint), OPERATOR, nest.routing)
    for client in (donor, new):
        typed.ask(client, SetRoster(nest.routing.hosts))
        client.close()


def test_a_host_that_joins_takes_over_and_one_that_is_emptied_leaves(nest: Nest) -> None:
    flow = Flow(nest)
    join(nest, "host-2")
    for origin in ("host-0", "host-1"):
        migrate(nest, origin, "host-2", "live", [{"groups": groups_of(nest, origin)[::3], "keys": []}], f"out-{origin}")
        assert ended(nest, origin, f"out-{origin}").dropped == 0
    flow.wait_batches(2)
    migrate(nest, "host-0", "host-1", "push", [{"groups": [g], "keys": []} for g in groups_of(nest, "host-0")], "empty")
    assert ended(nest, "host-0", "empty").dropped == 0
    left = nest.routing.moved({Unit("group", g): 9 for g in groups_of(nest, "host-1")}, "host-1")
    left = left.moved({Unit("group", g): 9 for g in groups_of(nest, "host-2")}, "host-2")
    nest.routing = left.parted(["host-0"])
    write_routing(str(nest.checkpoint), OPERATOR, nest.routing)
    for host in nest.routing.hosts:
        client = nest.client(host)
        typed.ask(client, SetRoster(nest.routing.hosts))
        client.close()
    client = nest.client("host-0")
    typed.ask(client, Stop())
    client.close()
    nest.process("host-0").wait(30)
    flow.wait_batches(3)
    flow.end()
    assert nest.state(flow.batch - 1) == flow.seen.counts


def test_state_comes_from_the_changelog_of_its_origin(nest: Nest) -> None:
    flow = Flow(nest)
    migrate(nest, "host-0", "host-1", "pause", [{"groups": groups_of(nest, "host-0"), "keys": []}], source="backup")
    assert ended(nest, "host-0").done == 1
    flow.wait_batches(2)
    flow.end()
    assert nest.state(flow.batch - 1) == flow.seen.counts


class Drifting(Count):
    """Puts out who did it: never the same on another host."""

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, count=count, n=np.full(len(rows), os.getpid()))


@pytest.mark.parametrize("processor", [Count, Drifting])
def test_a_check_tells_processors_that_are_not_deterministic(tmp_path: Path, processor: type[Count]) -> None:
    nest = Nest(tmp_path / "godwit", hosts=2, processor=processor()).start_all()
    try:
        flow = Flow(nest)
        moving = groups_of(nest, "host-0")
        migrate(nest, "host-0", "host-1", "live", [{"groups": [group], "keys": []} for group in moving], check=True)
        told = ended(nest, "host-0")
        flow.wait_batches(2)
        flow.end()
        assert nest.state(flow.batch - 1) == flow.seen.counts
        if processor is Count:
            assert told.dropped == 0
        else:
            assert told.dropped > 0
            assert "GODWIT-NOT-DETERMINISTIC" in told.reason
            assert f"operator={OPERATOR}" in told.reason
    finally:
        nest.close()


@pytest.mark.parametrize(
    "protocol", ["push", *(pytest.param(name, marks=pytest.mark.long) for name in ("fetch", "pause"))]
)
def test_protocols_that_ship_state_ask_nothing_of_the_processor(tmp_path: Path, protocol: str) -> None:
    """Nothing is computed again: a task that is retried gets from the new owner what the old one had put out."""
    nest = Nest(tmp_path / "godwit", hosts=2, processor=Drifting()).start_all()
    try:
        first = list(nest.run(0, "0", chunks(0, 4)))
        assert len({row["n"] for row in first}) == 2, "each host puts out its own number"
        moving = groups_of(nest, "host-0")
        migrate(nest, "host-0", "host-1", protocol, [{"groups": moving, "keys": []}])
        assert len(ended(nest, "host-0").moved) == len(moving)
        assert list(nest.run(0, "0", chunks(0, 4))) == first
        seen = Checked()
        seen.take(iter(first))
        seen.take(nest.run(1, "0", chunks(1, 4)))
        assert nest.state(1) == seen.counts
    finally:
        nest.close()


@pytest.mark.parametrize(
    "protocol", ["live", *(pytest.param(name, marks=pytest.mark.long) for name in ("fetch", "push"))]
)
def test_a_key_on_two_lanes_goes_on_from_what_its_origin_has_made_of_both(nest: Nest, protocol: str) -> None:
    """Both tasks run while keys move: together they give every count of a key once, and each of them in order."""
    given: dict[str, list[dict[str, Any]]] = {}
    half_way = threading.Barrier(3)

    def fed(lane: int) -> Iterator[pa.RecordBatch]:
        for at in range(20):
            if at == 5:
                half_way.wait(30)
            yield rows(range((2 * at + lane) * CHUNK, (2 * at + lane + 1) * CHUNK), KEYS // 5)

    def task(lane: int) -> None:
        given[str(lane)] = list(nest.run(0, str(lane), fed(lane)))

    tasks = [threading.Thread(target=task, args=(lane,)) for lane in (0, 1)]
    for thread in tasks:
        thread.start()
    moving = groups_of(nest, "host-0")
    half_way.wait(30)
    migrate(nest, "host-0", "host-1", protocol, [{"groups": [group], "keys": []} for group in moving])
    for thread in tasks:
        thread.join(60)
    assert len(ended(nest, "host-0").moved) == len(moving)
    counts: dict[int, list[int]] = {}
    for lane in given.values():
        mine: dict[int, list[int]] = {}
        for row in lane:
            mine.setdefault(row["key"], []).append(row["count"])
        for key, found in mine.items():
            assert found == sorted(found), f"key {key} is out of order on a lane"
            counts.setdefault(key, []).extend(found)
    assert {key: sorted(found) for key, found in counts.items()} == {
        key: list(range(1, count + 1)) for key, count in nest.state(0).items()
    }
    assert sum(map(len, counts.values())) == 40 * CHUNK


def test_a_host_that_comes_back_has_dropped_old_copies_before_anybody_can_reach_it(nest: Nest) -> None:
    """Were they dropped later, new copies that come in between would be taken for old ones."""
    flow = Flow(nest)
    migrate(nest, "host-0", "host-1", "standby", [{"groups": groups_of(nest, "host-0"), "keys": []}])
    wait_until(lambda: keys_on(nest)["host-1"] == KEYS, what="host-1 has copies of all that host-0 owns")
    mine = groups_of(nest, "host-1")
    nest.kill("host-1")
    seen: list[int] = []

    class Watched(Host):
        def _announce(self, address: str) -> None:
            seen.append(self._instances.named(OPERATOR).instance.state.key_count)

        def _serve(self) -> None:
            return

    Watched(nest.config("host-1"), lambda: 0).run()
    assert seen == [sum(route_hash(key) % GROUPS in mine for key in range(KEYS))]
    nest.start("host-1")
    flow.wait_batches(2)
    flow.end()
    assert nest.state(flow.batch - 1) == flow.seen.counts

"""State that is read while its keys move between real hosts: every key once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from godwit.errors import HostUnavailable, StaleGeneration
from godwit.model.ownership import Ownership, Stand
from godwit.runtime.liveness.leases import write_owner
from godwit.runtime.messages import ReportOwnership, Stop
from godwit.runtime.reading.state_reader import StateReader
from godwit.transport import typed
from tests.integration.nest import OPERATOR, Nest, route_hash, rows
from tests.integration.test_migration import ended, groups_of, migrate
from tests.spark.flocks import wait_until

KEYS = 300
LONGER = ("live-unordered", "pause", "push")


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Nest(tmp_path / "godwit", hosts=2).start_all()
    list(nest.run(0, "0", [rows(range(KEYS), KEYS)]))
    yield nest
    nest.close()


def reader_of(nest: Nest) -> StateReader:
    parts = tuple((host, frozenset(nest.routing.groups_of(host))) for host in nest.routing.hosts)
    return StateReader(nest.operator.spec, str(nest.checkpoint), parts, 0, nest.incarnation, nest.token)


def counted(batches: Iterator[pa.RecordBatch]) -> Counter[int]:
    return Counter(key for batch in batches for key in batch.column(0).to_pylist())


def once() -> dict[int, int]:
    return dict.fromkeys(range(KEYS), 1)


def test_at_rest(nest: Nest) -> None:
    reader = reader_of(nest)
    assert counted(reader.read(0)) + counted(reader.read(1)) == once()


@pytest.mark.parametrize("first", [0, 1])
def test_groups_that_move_between_two_reads(nest: Nest, first: int) -> None:
    """They show at their old owner if that is read first, and nowhere or twice if one goes by who has them at the moment."""
    reader = reader_of(nest)
    seen = counted(reader.read(first))
    migrate(nest, "host-0", "host-1", "live", [{"groups": groups_of(nest, "host-0"), "keys": []}])
    ended(nest, "host-0")
    assert seen + counted(reader.read(1 - first)) == once()


def test_a_single_key_that_is_apart_from_its_group(nest: Nest) -> None:
    key = next(key for key in range(KEYS) if nest.routing.owner(route_hash(key)) == "host-0")
    migrate(nest, "host-0", "host-1", "live", [{"groups": [], "keys": [route_hash(key)]}])
    ended(nest, "host-0")
    reader = reader_of(nest)
    found = [row for position in (0, 1) for batch in reader.read(position) for row in batch.to_pylist()]
    assert Counter(row["key"] for row in found) == once()
    assert [(row["host"], row["epoch"]) for row in found if row["key"] == key] == [("host-1", 2)]


def test_a_host_that_has_left_since_it_was_asked_for(nest: Nest) -> None:
    reader = reader_of(nest)
    migrate(nest, "host-0", "host-1", "live", [{"groups": groups_of(nest, "host-0"), "keys": []}])
    ended(nest, "host-0")
    client = nest.client("host-0")
    typed.ask(client, Stop())
    client.close()
    nest.process("host-0").wait()
    assert counted(reader.read(0)) + counted(reader.read(1)) == once()


def test_a_host_that_stays_away_is_named(nest: Nest) -> None:
    nest.kill("host-0")
    with pytest.raises(HostUnavailable, match="no host serves 32 groups"):
        list(replace(reader_of(nest), patience_s=0.1).read(0))


def test_after_the_flock_was_closed_nobody_is_waited_for(nest: Nest) -> None:
    nest.kill("host-0")
    write_owner(str(nest.checkpoint), nest.incarnation, closed=True)
    with pytest.raises(StaleGeneration, match="closed"):
        list(reader_of(nest).read(0))


def ownership_of(nest: Nest, host: str) -> Ownership:
    client = nest.client(host)
    try:
        reported = typed.ask(client, ReportOwnership(OPERATOR)).ownership
    finally:
        client.close()
    assert reported is not None
    return Ownership.from_dict(host, reported)


@pytest.mark.parametrize(
    "protocol", ["fetch", "live", *(pytest.param(name, marks=pytest.mark.long) for name in LONGER)]
)
def test_every_key_is_shown_once_while_keys_and_groups_move_to_and_fro(nest: Nest, protocol: str) -> None:
    """A key leaves its group, the group follows, both come back: whenever state is read, each key is in it once."""
    done = threading.Event()
    seen: list[Counter[int]] = []

    def read_all_the_time() -> None:
        while not done.is_set():
            reader = reader_of(nest)
            seen.append(counted(reader.read(0)) + counted(reader.read(1)))

    reading = threading.Thread(target=read_all_the_time)
    reading.start()
    try:
        for number in range(6):
            origin, target = ("host-0", "host-1") if number % 2 == 0 else ("host-1", "host-0")
            own = ownership_of(nest, origin)
            key = next(h for h in map(route_hash, range(KEYS)) if own.of(h).stand is Stand.MINE)
            alone = {"groups": [], "keys": [key]}
            migrate(nest, origin, target, protocol, [alone], f"key-{number}")
            ended(nest, origin, f"key-{number}")
            rest = [{"groups": [group], "keys": []} for group in sorted(ownership_of(nest, origin).mine().groups)]
            migrate(nest, origin, target, protocol, rest[: 4 if protocol == "fetch" else 16], f"groups-{number}")
            ended(nest, origin, f"groups-{number}")
        before = len(seen)
        wait_until(lambda: len(seen) > before or not reading.is_alive(), what="one more is read")
    finally:
        done.set()
        reading.join()
    assert len(seen) > 3
    assert [dict(counts - Counter(once()) + (Counter(once()) - counts)) for counts in seen if counts != once()] == []

"""A checkpoint that is looked at while others work in it: committed state from the hosts' logs, and nothing is touched."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.reading.log_reader import LogReader
from godwit.state.changelog import Changelog
from tests.integration.nest import Nest, rows
from tests.integration.test_migration import ended, groups_of, migrate

KEYS = 50


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Nest(tmp_path / "godwit", hosts=2).start_all()
    apply(nest, 0)
    yield nest
    nest.close()


def apply(nest: Nest, batch: int, count: int = KEYS) -> None:
    list(nest.run(batch, "0", [rows(range(batch * KEYS, batch * KEYS + count), KEYS)]))


def looked(nest: Nest, committed_batch: int) -> dict[int, int]:
    parts = tuple((host, frozenset(nest.routing.groups_of(host))) for host in nest.routing.hosts)
    reader = LogReader(nest.operator.spec, str(nest.checkpoint), parts, committed_batch, patience_s=5.0)
    found = [row for at in range(len(parts)) for batch in reader.read(at) for row in batch.to_pylist()]
    assert max(Counter(row["key"] for row in found).values()) == 1, "each key once"
    return {row["key"]: row["state"]["n"] for row in found}


def content(nest: Nest) -> dict[str, tuple[bytes, int]]:
    files = [path for path in nest.checkpoint.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_what_is_committed_shows_as_the_hosts_themselves_would_show_it(nest: Nest) -> None:
    apply(nest, 1, KEYS // 2)
    for committed in (0, 1):
        assert looked(nest, committed) == nest.state(committed)
    assert looked(nest, 0) == dict.fromkeys(range(KEYS), 1)


def test_looking_writes_nothing_and_fences_nobody(nest: Nest) -> None:
    before = content(nest)
    looked(nest, 0)
    assert content(nest) == before
    apply(nest, 1)
    assert looked(nest, 1) == dict.fromkeys(range(KEYS), 2)
    leases = [nest.lease(host) for host in nest.routing.hosts]
    assert [lease and lease.generation for lease in leases] == [1, 1]


def test_a_checkpoint_that_nobody_has_open(nest: Nest) -> None:
    for host in nest.routing.hosts:
        nest.kill(host)
    before = content(nest)
    assert looked(nest, 0) == dict.fromkeys(range(KEYS), 1)
    assert content(nest) == before


def test_groups_that_have_moved_since_the_routing_table_are_read_from_their_new_owner(nest: Nest) -> None:
    migrate(nest, "host-0", "host-1", "live", [{"groups": groups_of(nest, "host-0"), "keys": []}])
    ended(nest, "host-0")
    assert looked(nest, 0) == dict.fromkeys(range(KEYS), 1)


def test_files_that_go_while_they_are_read_are_looked_for_again(tmp_path: Path) -> None:
    """Generation after generation takes the log over and removes what the one before had written."""
    nest = Nest(tmp_path / "godwit", hosts=1).start_all()
    try:
        apply(nest, 0)
        nest.kill("host-0")
        over = threading.Event()
        generations = threading.Thread(target=_taken_over_until, args=(nest, over))
        generations.start()
        try:
            seen = [looked(nest, 0) for _ in range(20)]
        finally:
            over.set()
            generations.join()
        assert seen == [dict.fromkeys(range(KEYS), 1)] * 20
    finally:
        nest.close()


def _taken_over_until(nest: Nest, over: threading.Event) -> None:
    while not over.wait(0.01):
        log, recovered = Changelog.open(host_directory(str(nest.checkpoint), "host-0"))
        for _ in recovered.parts():
            pass
        log.close()

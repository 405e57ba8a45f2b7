"""A checkpoint that is looked at while others work in it: committed state from the hosts' logs, and nothing is touched."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest

from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.reading.log_reader import LogReader
from godwit.spark.checkpoint.data_source import KeyFilter
from godwit.state.changelog import Changelog
from godwit.state.keys import KeyCodec
from tests.integration.nest import HASHED, INPUT, Nest, rows
from tests.integration.test_migration import ended, groups_of, migrate
from tests.spark.flocks import Count

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


def test_keys_of_an_earlier_life_had_other_columns(nest: Nest) -> None:
    """Before: a filter on keys read the state of that life, which the log still has, as if it had the columns of now."""
    adapter = NativeAdapter(Count(), INPUT, ["key", "n"])
    earlier = nest.operator.spec
    spec = replace(earlier, key_schema=INPUT, variables=adapter.variables, life=earlier.life + 1)
    nest.operator = replace(nest.operator, spec=spec, adapter=cloudpickle.dumps(adapter))
    nest.controller.add(nest.operator)
    for host in nest.routing.hosts:
        nest.define(host)
    codec = KeyCodec(INPUT)
    keys = [(at, at + 100) for at in range(10)]
    columns = [*codec.to_arrow(keys), pa.array([codec.route_hash(key) for key in keys], pa.int64())]
    list(nest.run(0, "0", [pa.RecordBatch.from_arrays(columns, schema=HASHED)], key_names=("key", "n")))
    parts = tuple((host, frozenset(nest.routing.groups_of(host))) for host in nest.routing.hosts)
    reader = LogReader(spec, str(nest.checkpoint), parts, 0, patience_s=5.0).only(KeyFilter({1: (103, 105)}))
    found = [row for at in range(len(parts)) for batch in reader.read(at) for row in batch.to_pylist()]
    assert sorted((row["key"], row["n"], row["state"]["n"]) for row in found) == [(3, 103, 1), (5, 105, 1)]


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

"""A batch far larger than memory: its ledger and before-images are counted, go to disk, and are answered from there."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import godwit
from godwit.errors import StateTooLarge
from godwit.model.progress import BatchRef
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.chunk.chunk_bytes import chunk_from
from godwit.runtime.durable.work import Work
from godwit.runtime.instance.instance import Instance
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state import ledger as ledger_module
from godwit.state.changes import changes_schema
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.ledger import Entry, Ledger, in_row_order, with_rows
from godwit.transport import wire

INPUT = pa.schema([("key", pa.int64()), ("load", pa.binary())])
CHUNK_ROWS = 1_000
CHUNKS = 30
LIMIT = 800_000  # the ledger of the whole batch takes more, and its before-images eight times as much
REQUEST = BatchRef("q", "r", 1)


class Count(godwit.Processor):
    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("n", pa.int64())])

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> Any:
        counts = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, n=counts)


def instance_of(scratch: Path, limit: int | None = LIMIT) -> Instance:
    adapter = NativeAdapter(Count(), INPUT, ["key"])
    key_schema = pa.schema([INPUT.field("key")])
    spec = OperatorSpec("count", "Count", "native", key_schema, adapter.output_schema, adapter.variables)
    codec = KeyCodec(key_schema, "UTC")
    instance = Instance("count", spec, KeyedState(spec.variables, codec, scratch, limit), codec)
    instance.attach(spec, adapter)
    return instance


def chunk(number: int, load_bytes: int = 0, count: int = CHUNK_ROWS) -> Chunk:
    """Every row has a key of its own: a batch changes CHUNKS * CHUNK_ROWS keys. As it comes from the wire."""
    rows = np.arange(number * count, (number + 1) * count, dtype=np.int64)
    loads = pa.array([bytes(load_bytes)] * count, pa.binary())
    schema = pa.schema([*INPUT, (wire.ROW, pa.int64()), (wire.HASH, pa.int64())])
    sent = pa.record_batch([pa.array(rows), loads, pa.array(rows), pa.array(rows * 7)], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(sent)
    return chunk_from(pa.ipc.open_stream(sink.getvalue()).read_next_batch())


def welcome(*_: Any) -> bool:
    """Every run is the newest, and its progress is not asynchronous."""
    return False


def shown(work: Work) -> list[dict[str, Any]]:
    return in_row_order(work.outputs).to_pylist()


def bounded(instance: Instance) -> None:
    """What is beyond the shares of the limit is what one chunk has added."""
    assert instance.ledger.memory_bytes <= LIMIT // 8 + CHUNK_ROWS * 50
    assert instance.state.undo_bytes <= LIMIT // 8 + CHUNK_ROWS * 210


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[tuple[Instance, list[Work], list[Any]]]:
    """An instance that has counted all keys once, and once more in the batch in progress; its answers, and its log."""
    instance = instance_of(tmp_path)
    log = instance.open(BatchRef("q", "r", 0), "0", 1, welcome).parts
    for number in range(CHUNKS):
        log += instance.apply(BatchRef("q", "r", 0), "0", chunk(number)).parts
        bounded(instance)
    log += instance.finish(BatchRef("q", "r", 0), "0", CHUNKS * CHUNK_ROWS, None).parts
    log += instance.open(REQUEST, "0", 2, welcome).parts
    assert instance.ledger.memory_bytes == instance.ledger.disk_bytes == instance.state.undo_bytes == 0
    works = []
    for number in range(CHUNKS):
        works.append(instance.apply(REQUEST, "0", chunk(number)))
        log += works[-1].parts
        bounded(instance)
    yield instance, works, log
    instance.close()
    instance.state.close()


Batch = tuple[Instance, list[Work], list[Any]]


def test_a_batch_beyond_the_limit_stays_within_it_and_is_shown(batch: Batch) -> None:
    instance, _, _ = batch
    status = instance.status()
    assert status["ledger_disk_bytes"] > LIMIT
    assert status["undo_disk_bytes"] > 4 * LIMIT
    assert 0 < status["ledger_bytes"] < LIMIT
    assert 0 < status["undo_bytes"] < LIMIT


def test_rows_that_come_again_are_answered_from_disk_and_change_nothing(batch: Batch) -> None:
    instance, works, _ = batch
    for number in (0, 1, CHUNKS // 2, CHUNKS - 1):
        assert shown(instance.apply(REQUEST, "0", chunk(number))) == shown(works[number])
    assert instance.counters.replayed == 4 * CHUNK_ROWS
    assert set(shown_state(instance, committed=False).values()) == {2}


def test_committed_state_is_what_it_was_before_the_batch(batch: Batch) -> None:
    instance, _, _ = batch
    assert shown_state(instance, committed=True) == dict.fromkeys(range(CHUNKS * CHUNK_ROWS), 1)
    instance.finish(REQUEST, "0", CHUNKS * CHUNK_ROWS, None)
    instance.open(BatchRef("q", "r", 2), "0", 3, welcome)
    assert set(shown_state(instance, committed=True).values()) == {2}


def test_a_batch_beyond_the_limit_begins_anew_from_disk(batch: Batch) -> None:
    instance, _, _ = batch
    instance.open(BatchRef("q", "later", 1), "0", 3, welcome)
    assert shown_state(instance, committed=False) == dict.fromkeys(range(CHUNKS * CHUNK_ROWS), 1)
    assert not instance.ledger.row_count


def shown_state(instance: Instance, committed: bool) -> dict[int, int]:
    rows = [row for batch in instance.state.export(committed) for row in batch.to_pylist()]
    return {row["key"]: int.from_bytes(row["value"][-8:], "little") for row in rows}


def test_a_restarted_host_reads_a_batch_beyond_its_limit(batch: Batch, tmp_path: Path) -> None:
    _, works, log = batch
    restarted = instance_of(tmp_path)
    schema = changes_schema(restarted.key_codec)
    for info, body in log:
        match info["kind"]:
            case "mark":
                restarted.recovery.mark(info)
            case "state":
                restarted.recovery.state(info, pa.ipc.read_record_batch(pa.py_buffer(body), schema))
            case "ledger":
                restarted.recovery.ledger(info, memoryview(body))
        bounded(restarted)
    assert restarted.ledger.disk_bytes > LIMIT
    assert shown(restarted.apply(REQUEST, "0", chunk(3))) == shown(works[3])
    assert set(shown_state(restarted, committed=True).values()) == {1}
    restarted.close()
    restarted.state.close()


def test_a_ledger_has_a_limit_also_where_state_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert instance_of(tmp_path, None).ledger.memory_bytes_max == 256 << 20
    monkeypatch.setattr(ledger_module, "MEMORY_BYTES_MAX", 100_000)
    instance = instance_of(tmp_path, None)
    instance.open(REQUEST, "0", 1, welcome)
    for number in range(20):
        instance.apply(REQUEST, "0", chunk(number))
        assert instance.ledger.memory_bytes <= 100_000 + CHUNK_ROWS * 100
    assert instance.ledger.disk_bytes > 500_000
    instance.close()


def test_a_ledger_does_not_keep_the_chunks_in_memory_in_which_its_rows_came(tmp_path: Path) -> None:
    instance = instance_of(tmp_path, None)
    instance.open(REQUEST, "0", 1, welcome)
    instance.apply(REQUEST, "0", chunk(0, load_bytes=1_000, count=3_000))
    gc.collect()
    before = pa.total_allocated_bytes()
    for number in range(1, 6):
        instance.apply(REQUEST, "0", chunk(number, load_bytes=1_000, count=3_000))
    gc.collect()
    assert pa.total_allocated_bytes() - before < 1_000_000, "five chunks have fifteen megabytes"


@pytest.fixture
def full_disk() -> Iterator[None]:
    """From now on no file of this process can grow beyond 64 KiB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_fails_the_chunk_before_anything_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MEMORY_BYTES_MAX", 200_000)
    instance = instance_of(tmp_path, None)
    instance.open(REQUEST, "0", 1, welcome)
    done = 0
    while instance.ledger.memory_bytes <= 200_000:
        instance.apply(REQUEST, "0", chunk(done))
        done += 1
    with pytest.raises(StateTooLarge, match="TMPDIR"):
        instance.apply(REQUEST, "0", chunk(done))
    assert instance.state.key_count == instance.ledger.row_count == done * CHUNK_ROWS
    instance.ledger.memory_bytes_max = 10**9  # somebody has made room
    assert {row["n"] for row in shown(instance.apply(REQUEST, "0", chunk(done)))} == {1}
    assert {row["n"] for row in shown(instance.apply(REQUEST, "0", chunk(0)))} == {1}


@pytest.mark.usefixtures("full_disk")
def test_entries_that_were_handed_over_are_forgotten_though_the_disk_is_full() -> None:
    schema = pa.schema([("n", pa.int64())])
    ledger = Ledger(schema, 0)
    rows = np.arange(1_000, dtype=np.int64)
    for first in (0, 1_000):
        mine = rows + first
        outputs = pa.record_batch([pa.array(mine), pa.array(mine)], schema=with_rows(schema))
        ledger.record("0", Entry(mine, mine % 2, outputs))
    ledger.make_room()
    ledger.drop(lambda hashes: hashes == 1)
    assert ledger.row_count == 1_000
    assert in_row_order(ledger.recorded("0", rows)).column("n").to_pylist() == list(range(0, 1_000, 2))
    assert ledger.memory_bytes > 10_000, "where there was no room on disk, what is left is in memory"


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    script = """
import os, signal
import numpy as np, pyarrow as pa
from godwit.state.ledger import Entry, Ledger, with_rows
schema = pa.schema([("n", pa.int64())])
rows = np.arange(1000, dtype=np.int64)
ledger = Ledger(schema, 0)
ledger.record("0", Entry(rows, rows, pa.record_batch([pa.array(rows)] * 2, schema=with_rows(schema))))
ledger.make_room()
assert ledger.disk_bytes > 10_000 and len(ledger.recorded("0", rows)[0]) == 1000
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    )
    assert ended.returncode == -9
    assert list(tmp_path.iterdir()) == []

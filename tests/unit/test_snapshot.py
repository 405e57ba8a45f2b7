"""Compaction: the same state from fewer bytes, whatever is interrupted, while the log goes on."""

from __future__ import annotations

import base64
import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.errors import CheckpointCorrupt, CheckpointUnusable, GodwitError, InvariantBroken, StaleGeneration
from godwit.state.changelog import Changelog, Part, Recovered
from godwit.state.changes import CLEAR, PUT, REMOVE, changes_schema
from godwit.state.compaction_merge import slice_count
from godwit.state.frames import FrameReader
from godwit.state.keys import KeyCodec
from godwit.state.manifest import read_manifest
from godwit.state.slices import key_hash, split
from godwit.state.snapshot import Compactor, due

SCHEMA = changes_schema(KeyCodec(pa.schema([("k", pa.int64())])))

Row = tuple[int, int, int, bytes | None, bytes | None]  # key, var, op, sub, value
Cell = tuple[int, int, bytes | None]
State = dict[str, dict[Cell, bytes | None]]


def define(op: str, **info: Any) -> Part:
    schema = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    return Part({"kind": "define", "op": op, "schema": schema, **info})


def state(op: str, batch: int, rows: Sequence[Row]) -> Part:
    columns = list(zip(*rows, strict=True)) or [()] * 5
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    body = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA).serialize()
    return Part({"kind": "state", "op": op, "batch": batch}, body)


def put(op: str, batch: int, cells: Mapping[int, str]) -> Part:
    return state(op, batch, [(key, 0, PUT, None, value.encode()) for key, value in cells.items()])


def ledger(op: str, batch: int, body: bytes = b"") -> Part:
    return Part({"kind": "ledger", "op": op, "batch": batch}, body)


def mark(op: str, number: int) -> Part:
    return Part({"kind": "mark", "op": op, "number": number})


def drop(op: str) -> Part:
    return Part({"kind": "drop", "op": op})


def applied(parts: Iterable[Part]) -> State:
    """What the parts say, read row by row into plain dicts."""
    found: State = {}
    for info, body in parts:
        if info["kind"] == "drop":
            found.pop(info["op"], None)
        elif info["kind"] == "state":
            cells = found.setdefault(info["op"], {})
            batch = pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA)
            for key, var, op, sub, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if op == PUT:
                    cells[key, var, sub] = value
                elif op == REMOVE:
                    cells.pop((key, var, sub), None)
                else:
                    assert op == CLEAR
                    for cell in [cell for cell in cells if cell[:2] == (key, var)]:
                        del cells[cell]
    return {operator: cells for operator, cells in found.items() if cells}


class Host:
    """A directory with an open log, compacted and reopened at will."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.options = options
        self.log, self.recovered = Changelog.open(directory)

    def write(self, *frames: Sequence[Part]) -> None:
        for parts in frames:
            self.log.flush(self.log.append(parts))

    def compact(self, settled: Mapping[str, int], **options: Any) -> None:
        self.log.rotate()
        compactor = Compactor(self.log.generation, **self.options, **options)
        compactor.compact(self.directory, self.log.sealed(), settled)

    def reopen(self) -> list[Part]:
        with suppress(GodwitError):
            self.log.close()
        self.log, self.recovered = Changelog.open(self.directory)
        return list(self.recovered.parts())

    def names(self, kind: str) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.name.startswith(kind))

    def snapshot_parts(self) -> list[list[Part]]:
        parts = []
        for stored in read_manifest(self.directory, self.log.generation).snapshots:
            with FrameReader(self.directory / stored.file, stored.bytes) as reader:
                parts.append([part for frame in reader.frames() for part in frame.parts])
        return parts


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "host")
    yield host
    with suppress(GodwitError):
        host.log.close()


def kinds(parts: Iterable[Part]) -> list[tuple[str, Any]]:
    return [(info["kind"], info.get("batch", info.get("number"))) for info, _ in parts]


# ---- what is kept


def test_settled_state_is_merged_to_its_last_rows(host: Host) -> None:
    host.write([define("a"), put("a", 1, {1: "x", 2: "y"})], [put("a", 2, {1: "z"})], [put("a", 3, {3: "w"})])
    host.compact({"a": 3})
    [parts] = host.snapshot_parts()
    assert kinds(parts) == [("define", None), ("state", 3)]
    assert pa.ipc.read_record_batch(pa.py_buffer(parts[1].body), SCHEMA).num_rows == 3
    assert applied(host.reopen()) == {"a": {(1, 0, None): b"z", (2, 0, None): b"y", (3, 0, None): b"w"}}


def test_batches_that_are_not_settled_are_carried_as_they_are(host: Host) -> None:
    late = [put("a", 3, {1: "late"}), ledger("a", 3, b"answers"), put("a", 4, {1: "later"})]
    host.write([define("a"), put("a", 1, {1: "x"}), ledger("a", 1)], [put("a", 2, {1: "y"})], late)
    host.compact({"a": 2})
    parts = host.reopen()
    assert kinds(parts) == [("define", None), ("state", 2), ("state", 3), ("ledger", 3), ("state", 4)]
    assert [bytes(part.body) for part in parts[2:]] == [bytes(part.body) for part in late]
    assert [part.info for part in parts[2:]] == [part.info for part in late]


def test_operator_that_nobody_says_is_settled_is_carried_whole(host: Host) -> None:
    parts = [define("a"), put("a", 1, {1: "x"}), ledger("a", 1), put("a", 2, {1: "y"})]
    host.write(parts)
    host.compact({"b": 5})
    assert [(info, bytes(body)) for info, body in host.reopen()] == [(i, bytes(b)) for i, b in parts]


def test_state_after_a_batch_that_is_not_settled_stays_after_it(host: Host) -> None:
    host.write([define("a"), put("a", 5, {1: "five"})], [put("a", 4, {1: "four"})])
    host.compact({"a": 4})
    assert applied(host.reopen()) == {"a": {(1, 0, None): b"four"}}


def test_state_carried_before_merged_rows_stays_before_them(host: Host) -> None:
    host.write([define("a"), put("a", 1, BIG)])
    host.compact({"a": 1})
    host.write([put("a", 9, {1: "nine"})])
    host.compact({"a": 6})
    host.write([put("a", 8, {1: "eight"})])
    host.compact({"a": 8})
    assert len(host.names("snap")) == 2
    assert applied(host.reopen())["a"][1, 0, None] == b"eight"


def test_rows_merged_once_stay_settled_even_if_nobody_says_so_again(host: Host) -> None:
    host.write([define("a"), put("a", 1, BIG)])
    host.compact({"a": 1})
    host.write([put("a", 1, BIG), ledger("a", 1)])
    host.compact({})
    assert [kinds(parts) for parts in host.snapshot_parts()] == [[("define", None), ("state", 1)]]


def test_settled_ledger_is_dropped_whatever_stands_before_it(host: Host) -> None:
    host.write([define("a"), ledger("a", 1)], [ledger("a", 3), ledger("a", 2)])
    host.compact({"a": 2})
    assert kinds(host.reopen()) == [("define", None), ("ledger", 3)]


def test_carried_parts_are_merged_once_they_are_settled(host: Host) -> None:
    host.write([define("a"), put("a", 1, {1: "x"})], [put("a", 2, {1: "y"}), ledger("a", 2)])
    host.compact({"a": 1})
    host.write([put("a", 3, {2: "z"})])
    host.compact({"a": 3})
    assert kinds(host.snapshot_parts()[0]) == [("define", None), ("state", 3)]
    assert applied(host.reopen()) == {"a": {(1, 0, None): b"y", (2, 0, None): b"z"}}


def test_only_the_newest_define_and_mark_are_kept_and_the_mark_in_its_place(host: Host) -> None:
    host.write([define("a", version=1), mark("a", 1)], [define("a", version=2), put("a", 1, {1: "x"})])
    host.write([mark("a", 2)], [put("a", 2, {1: "y"}), ledger("a", 2)])
    host.compact({"a": 1})
    parts = host.reopen()
    assert kinds(parts) == [("define", None), ("state", 1), ("mark", 2), ("state", 2), ("ledger", 2)]
    assert parts[0].info["version"] == 2


def test_mark_repeated_at_the_head_of_a_segment_keeps_its_first_place(host: Host) -> None:
    host.write([define("a"), mark("a", 7)], [ledger("a", 7, b"1")])
    host.log.rotate()
    host.write([ledger("a", 7, b"2")])
    for split_in_two in (False, True):
        host.compact({"a": 6})
        parts = host.reopen()
        assert kinds(parts) == [("define", None), ("mark", 7), *[("ledger", 7)] * (3 if split_in_two else 2)]
        host.write([ledger("a", 7, b"3")])


def test_parts_of_a_kind_not_known_here_are_carried(host: Host) -> None:
    host.write([define("a"), Part({"kind": "released", "op": "a", "batch": 1}, b"keys")])
    host.compact({"a": 9})
    assert [(info["kind"], bytes(body)) for info, body in host.reopen()][1:] == [("released", b"keys")]


def test_operators_do_not_touch_each_other(host: Host) -> None:
    host.write([define("a"), define("b"), put("a", 1, {1: "a1"}), put("b", 1, {1: "b1"})])
    host.write([put("b", 2, {1: "b2"}), put("a", 2, {2: "a2"})])
    host.compact({"a": 2, "b": 1})
    expected = {"a": {(1, 0, None): b"a1", (2, 0, None): b"a2"}, "b": {(1, 0, None): b"b2"}}
    assert applied(host.reopen()) == expected


def test_key_columns_named_like_the_others_are_told_apart(tmp_path: Path) -> None:
    fields: list[tuple[str, pa.DataType]] = [("value", pa.string()), ("var", pa.int32())]
    schema = changes_schema(KeyCodec(pa.schema(fields)))
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    columns: list[list[Any]] = [["x", "x", "x"], [1, 2, 1], [0] * 3, [PUT] * 3, [None] * 3, [b"1", b"2", b"3"]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    body = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize()
    host = Host(tmp_path)
    host.write([Part({"kind": "define", "op": "a", "schema": text})])
    host.write([Part({"kind": "state", "op": "a", "batch": 1}, body)])
    host.compact({"a": 1})
    rows = pa.ipc.read_record_batch(pa.py_buffer(host.reopen()[1].body), schema)
    assert [row.as_py() for row in rows.column(5)] == [b"3", b"2"]
    host.log.close()


# ---- deltas on a base


BIG = dict.fromkeys(range(100, 200), "x" * 100)


def test_small_delta_is_put_beside_the_base(host: Host) -> None:
    host.write([define("a"), put("a", 1, BIG)])
    host.compact({"a": 1})
    [base] = host.names("snap")
    host.write([put("a", 2, {1: "y"})])
    host.compact({"a": 2})
    assert len(host.names("snap")) == 2
    assert host.names("snap")[0] == base
    assert applied(host.reopen())["a"][1, 0, None] == b"y"


def test_removals_in_a_delta_reach_the_base(host: Host) -> None:
    host.write([define("a"), put("a", 1, {**BIG, 1: "one", 2: "two"})])
    host.write([state("a", 1, [(3, 1, PUT, b"s", b"1"), (3, 1, PUT, b"t", b"2")])])
    host.compact({"a": 1})
    rows: list[Row] = [(1, 0, REMOVE, None, None), (3, 1, CLEAR, None, None), (3, 1, PUT, b"u", b"3")]
    host.write([state("a", 2, rows)])
    host.compact({"a": 2})
    assert len(host.names("snap")) == 2
    for _ in range(2):
        found = applied(host.reopen())["a"]
        assert (1, 0, None) not in found
        assert found[2, 0, None] == b"two"
        assert [cell for cell in found if cell[0] == 3] == [(3, 1, b"u")]
        host.write([put("a", 3, BIG)])
        host.compact({"a": 3})  # now as large as the base: merged into it
        assert len(host.names("snap")) == 1


def test_base_holds_no_removals(host: Host) -> None:
    host.write([define("a"), put("a", 1, {1: "x", 2: "y"})])
    host.write([state("a", 1, [(1, 0, REMOVE, None, None), (2, 0, CLEAR, None, None)])])
    host.compact({"a": 1})
    assert kinds(host.snapshot_parts()[0]) == [("define", None)]


@pytest.mark.parametrize("on_base", [False, True])
def test_dropped_operator_disappears(host: Host, on_base: bool) -> None:
    host.write([define("a"), put("a", 1, {1: "x"}), mark("a", 1), ledger("a", 9)], [define("b"), put("b", 1, BIG)])
    if on_base:
        host.compact({"a": 1, "b": 1})
    host.write([drop("a")])
    host.compact({"a": 1, "b": 1})
    assert len(host.names("snap")) == (2 if on_base else 1)
    assert "a" not in applied(host.reopen())
    host.write([put("b", 2, BIG)])
    host.compact({"b": 2})
    assert len(host.names("snap")) == 1
    assert {part.info["op"] for part in host.reopen()} == {"b"}


def test_operator_defined_again_after_a_drop_starts_empty(host: Host) -> None:
    host.write([define("b"), put("b", 1, BIG), define("a"), put("a", 7, {1: "old", 2: "old"})])
    host.compact({"a": 7, "b": 1})
    host.write([drop("a"), define("a", version=2), put("a", 1, {1: "new"})])
    for settled in (0, 1, 1):
        host.compact({"a": settled})
        parts = host.reopen()
        assert applied(parts)["a"] == {(1, 0, None): b"new"}
        assert [part.info["version"] for part in parts if part.info.get("version")] == [2]


def test_operator_that_came_and_went_between_two_compactions_leaves_nothing(host: Host) -> None:
    host.write([define("b"), put("b", 1, BIG)])
    host.compact({"b": 1})
    for _ in range(2):
        host.write([define("a"), put("a", 1, {1: "x"}), drop("a")])
        host.compact({"a": 1, "b": 1})
    assert len(host.names("snap")) > 1
    assert {part.info["op"] for part in host.reopen()} == {"b"}


def test_operator_is_dropped_once_however_often_it_came_and_went(host: Host) -> None:
    host.write([define("b"), put("b", 1, BIG), define("a"), put("a", 1, {1: "x"})])
    host.compact({"a": 1, "b": 1})
    host.write([drop("a"), put("b", 2, dict.fromkeys(range(100, 120), "y" * 100))])
    host.compact({"b": 2})
    host.write([define("a"), drop("a")])
    host.compact({"b": 2})
    assert len(host.names("snap")) == 3
    assert [kind for kind, _ in kinds(host.reopen())].count("drop") == 1


def test_define_from_before_a_drop_does_not_count(host: Host) -> None:
    host.write([define("a"), put("a", 1, BIG)])
    host.compact({"a": 1})
    host.write([drop("a"), put("a", 1, {1: "x"})])
    with pytest.raises(InvariantBroken, match="never defined"):
        host.compact({"a": 1})


def test_removals_stay_only_where_there_is_something_below(host: Host) -> None:
    host.write([define("b"), put("b", 1, BIG)])
    host.compact({"b": 1})
    host.write([define("a"), put("a", 1, {1: "x"}), state("a", 1, [(1, 0, REMOVE, None, None)])])
    host.compact({"a": 1})
    assert {kind for kind, _ in kinds(host.snapshot_parts()[1])} == {"define"}


def test_define_may_stand_in_the_base_only(host: Host) -> None:
    host.write([define("a"), put("a", 1, BIG)])
    host.compact({"a": 1})
    host.reopen()
    host.write([put("a", 2, {1: "x"})])
    host.compact({"a": 2})
    assert len(host.names("snap")) == 2
    assert applied(host.reopen())["a"][1, 0, None] == b"x"


def test_state_without_a_define_is_a_broken_rule(host: Host) -> None:
    host.write([put("a", 1, {1: "x"})])
    with pytest.raises(InvariantBroken, match="never defined"):
        host.compact({"a": 1})


@pytest.mark.parametrize(
    ("sizes", "begin"),
    [
        ([], None),
        ([5], None),
        ([100, 49], None),
        ([100, 50], 0),
        ([100, 25, 25], 0),
        ([0, 0], 0),
        ([1000, 40, 20, 10], None),
        ([1000, 41, 20, 20], 2),
        ([1000, 40, 20, 10, 10], 1),
        ([1000, 110, 110, 110, 70], 1),
        ([1000, 200, 9, 10], 2),
    ],
)
def test_snapshots_are_merged_when_newer_ones_outweigh_them(sizes: list[int], begin: int | None) -> None:
    assert due(sizes) == begin


def test_number_of_snapshots_and_bytes_written_stay_small(host: Host) -> None:
    written = 0

    def count(step: str) -> None:
        nonlocal written
        if step == "snapshot named":
            written += max(host.directory.glob("snap-*"), key=lambda path: path.stat().st_mtime_ns).stat().st_size

    host.write([define("a"), put("a", 0, dict.fromkeys(range(2000), "x" * 100))])
    host.compact({"a": 0})
    for batch in range(1, 65):
        host.write([put("a", batch, {batch * 10 + key: f"{batch}" * 50 for key in range(10)})])
        host.compact({"a": batch}, on_step=count)
        assert len(host.names("snap")) <= 7
    logged = 64 * 2000
    assert written < 8 * logged
    assert len(applied(host.reopen())["a"]) == 2000


# ---- slices


@pytest.mark.parametrize("slice_bytes", [1 << 20, 2000, 300])
def test_slices_of_any_size_give_the_same_state(tmp_path: Path, slice_bytes: int) -> None:
    host = Host(tmp_path, slice_bytes=slice_bytes)
    random = np.random.default_rng(5)
    host.write([define("a")])
    expected: dict[Cell, bytes] = {}
    for batch in range(12):
        keys = random.integers(0, 300, 40).tolist()
        host.write([put("a", batch, {key: f"{batch}-{key}" for key in keys})])
        expected |= {(key, 0, None): f"{batch}-{key}".encode() for key in keys}
        if batch % 2:
            host.compact({"a": batch})
    assert applied(host.reopen()) == {"a": expected}
    host.log.close()


def test_number_of_slices_may_grow_and_shrink(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.write([define("a"), put("a", 0, dict.fromkeys(range(500), "0"))])
    counts = []
    for batch, slice_bytes in enumerate([4 << 20, 40_000, 4000, 80_000, 4 << 20], 1):
        # Each delta has more than half the bytes of what is there, so that all is merged every time.
        host.write([put("a", batch, dict.fromkeys(range(0, 500, batch), f"{batch}" * 50 * 2**batch))])
        host.options = {"slice_bytes": slice_bytes}
        host.compact({"a": batch})
        [parts] = host.snapshot_parts()
        counts += [{info["slice"][1] for info, _ in parts if info["kind"] == "state"}]
    assert counts == [{1}, {4}, {64}, {4}, {1}]
    found = applied(host.reopen())["a"]
    newest = [max(batch for batch in range(1, 6) if key % batch == 0) for key in range(500)]
    assert found == {(key, 0, None): f"{batch}".encode() * 50 * 2**batch for key, batch in enumerate(newest)}
    host.log.close()


def test_large_base_is_not_taken_into_memory(tmp_path: Path) -> None:
    host = Host(tmp_path, slice_bytes=256 << 10)
    host.write([define("a")])
    for begin in range(0, 8000, 500):
        host.write([put("a", 0, dict.fromkeys(range(begin, begin + 500), "x" * 2000))])
        host.log.rotate()
    host.compact({"a": 0}, round_bytes=2 << 20)
    idle = pa.total_allocated_bytes()
    most = 0

    def look(step: str) -> None:
        nonlocal most
        most = max(most, pa.total_allocated_bytes() - idle)

    [before] = host.names("snap")
    for begin in range(0, 8000, 500):
        host.write([put("a", 1, dict.fromkeys(range(begin, begin + 500), "y" * 2000))])
        host.log.rotate()
    host.compact({"a": 1}, on_step=look, round_bytes=2 << 20)
    [after] = host.names("snap")
    assert after != before
    assert (host.directory / after).stat().st_size > 16_000_000
    assert 0 < most < 8_000_000
    host.log.close()


@pytest.mark.parametrize(("total", "count"), [(0, 1), (1, 1), (100, 1), (101, 2), (250, 4), (401, 8), (10**12, 4096)])
def test_number_of_slices_is_a_power_of_two(total: int, count: int) -> None:
    assert slice_count(total, 100) == count


KEY_COLUMNS: dict[str, pa.Array[Any]] = {
    "int": pa.array([1, -1, None, 2**62], pa.int64()),
    "short": pa.array([1, -1, None, 5], pa.int16()),
    "bool": pa.array([True, False, None, True]),
    "double": pa.array([0.0, 1.5, None, float("inf")]),
    "float": pa.array([0.0, 1.5, None, 2.0], pa.float32()),
    "string": pa.array(["", "a", None, "customer-é"]),
    "binary": pa.array([b"", b"\x00", None, b"\x00\x00"]),
    "decimal": pa.array([Decimal("1.5"), Decimal("-1.5"), None, Decimal(10**20)], pa.decimal128(30, 2)),
}
# Slices are kept in files: these numbers must never change.
HASHES = {
    "int": [6238072747940578789, 13029008266876403067, 0, 1360429390938723525],
    "short": [6238072747940578789, 13029008266876403067, 0, 13168350753275463132],
    "bool": [6238072747940578789, 0, 0, 6238072747940578789],
    "double": [0, 16657480027015623784, 0, 14868215988911630544],
    "float": [0, 16657480027015623784, 0, 1360429390938723525],
    "string": [0, 17189161910051005891, 0, 11447162246474343480],
    "binary": [0, 16294208416658607535, 0, 15187186396658532337],
    "decimal": [4912544280949951586, 9268848487276053458, 0, 1086151307619097916],
}


@pytest.mark.parametrize("name", KEY_COLUMNS)
def test_hash_of_a_key_stays_what_it_was(name: str) -> None:
    table = pa.table({"k": KEY_COLUMNS[name]})
    assert key_hash(table, 1).tolist() == HASHES[name]


@pytest.mark.parametrize("name", KEY_COLUMNS)
def test_hash_of_a_key_does_not_depend_on_how_rows_are_laid_out(name: str) -> None:
    column = KEY_COLUMNS[name]
    whole = key_hash(pa.table({"k": column}), 1).tolist()
    chunks = [column[:1], column[1:], column[:0], column.slice(2, 2)]
    chunked = pa.concat_tables([pa.table({"k": chunk}) for chunk in chunks])
    assert key_hash(chunked, 1).tolist() == [*whole, *whole[2:]]
    assert len(set(whole[:2])) == 2


def test_hash_takes_all_key_columns_and_nothing_else() -> None:
    table = pa.table({"a": [1, 2, 1, 1], "b": ["x", "x", "y", "x"], "rest": [1, 2, 3, 4]})
    first, second, third, fourth = key_hash(table, 2).tolist()
    assert len({first, second, third}) == 3
    assert first == fourth


def test_split_keeps_all_rows_in_order_and_spreads_them() -> None:
    keys = [f"key-{n}" for n in range(200_000)]  # more than are hashed at once
    table = pa.table({"k": keys * 2, "n": list(range(400_000))})
    slices = split(table, 1, 8)
    found: list[list[int]] = [rows["n"].to_numpy().tolist() for rows in slices]
    assert sorted(n for numbers in found for n in numbers) == list(range(400_000))
    for numbers in found:
        assert numbers == sorted(numbers)
        assert numbers[len(numbers) // 2 :] == [n + 200_000 for n in numbers[: len(numbers) // 2]]
        assert 45_000 < len(numbers) < 55_000


# ---- files


def test_old_files_are_removed(host: Host) -> None:
    host.write([define("a"), put("a", 1, {1: "x"})])
    host.compact({"a": 1})
    host.write([put("a", 2, {1: "y"})])
    host.compact({"a": 2})
    assert host.names("") == [
        "claim-00000001",
        "log-00000001-00000003",
        "manifest-00000001.json",
        "serving-00000001",
        "snap-00000001-00000003",
    ]


def test_segments_of_older_generations_are_compacted_up_to_where_they_count(host: Host) -> None:
    host.write([define("a"), put("a", 1, {1: "x"})])
    stale = host.log
    host.log, recovered = Changelog.open(host.directory)
    assert applied(recovered.parts())["a"] == {(1, 0, None): b"x"}
    with pytest.raises(StaleGeneration):
        stale.flush(stale.append([put("a", 1, {1: "ignored"})]))
    host.write([put("a", 2, {2: "y"})])
    host.compact({"a": 2})
    assert host.names("log") == ["log-00000002-00000002"]
    assert applied(host.reopen())["a"] == {(1, 0, None): b"x", (2, 0, None): b"y"}
    with suppress(GodwitError):
        stale.close()


def test_rounds_bound_how_much_is_merged_at_once(host: Host) -> None:
    host.write([define("a")])
    named = 0

    def count(step: str) -> None:
        nonlocal named
        named += step == "snapshot named"

    for batch in range(6):
        host.write([put("a", batch, {batch: "x" * 1000})])
        host.log.rotate()
    sealed = host.log.sealed()
    round_bytes = 2 * max(path.stat().st_size for path in sealed)
    compactor = Compactor(host.log.generation, round_bytes=round_bytes, on_step=count)
    compactor.compact(host.directory, sealed, {"a": 6})
    assert (len(sealed), named) == (6, 4)  # three rounds, then what they made is merged
    assert len(applied(host.reopen())["a"]) == 6


def test_segments_given_twice_are_merged_once(host: Host) -> None:
    host.write([define("a"), put("a", 1, {1: "x"})])
    host.log.rotate()
    sealed = host.log.sealed()
    for _ in range(2):
        Compactor(host.log.generation).compact(host.directory, sealed, {"a": 1})
    assert host.log.sealed() == []
    assert applied(host.reopen())["a"] == {(1, 0, None): b"x"}


def test_segments_that_are_not_the_oldest_are_refused(host: Host) -> None:
    for batch in range(3):
        host.write([define("a"), put("a", batch, {1: "x"})])
        host.log.rotate()
    with pytest.raises(InvariantBroken, match="not the oldest"):
        Compactor(host.log.generation).compact(host.directory, host.log.sealed()[1:], {})


def test_nothing_to_compact_changes_nothing(host: Host) -> None:
    host.write([define("a")])
    before = host.names("")
    Compactor(host.log.generation).compact(host.directory, host.log.sealed(), {})
    assert host.names("") == before


# ---- what goes wrong


def busy(host: Host) -> State:
    """Fill a directory so that a compaction makes a delta, merges it with another and drops an operator."""
    host.options = {"slice_bytes": 3000}
    host.write([define("a"), define("b"), put("a", 1, BIG), put("b", 1, {1: "gone"})])
    host.compact({"a": 1, "b": 1})
    host.write([put("a", 2, {1: "x"}), mark("a", 2)])
    host.compact({"a": 2})
    host.write([put("a", 3, {1: "y", 2: "z"}), state("a", 3, [(150, 0, REMOVE, None, None)]), drop("b")])
    host.write([put("a", 4, {3: "late"}), ledger("a", 4, b"answers")])
    cells: dict[Cell, bytes | None] = {(key, 0, None): value.encode() for key, value in BIG.items()}
    cells |= {(1, 0, None): b"y", (2, 0, None): b"z", (3, 0, None): b"late"}
    del cells[150, 0, None]
    return {"a": cells}


STEPS = ["part written", "snapshot written", "snapshot named", "manifest replaced", "old files removed"]


class Crash(BaseException):
    """Not an error that anything could handle."""


@pytest.mark.parametrize("occurrence", [0, 1])
@pytest.mark.parametrize("step", STEPS)
def test_crash_after_any_step_leaves_the_state(host: Host, step: str, occurrence: int) -> None:
    expected = busy(host)
    seen = 0

    def crash(done: str) -> None:
        nonlocal seen
        if done == step:
            seen += 1
            if seen > occurrence:
                raise Crash

    with pytest.raises(Crash):
        host.compact({"a": 3}, on_step=crash)
    parts = host.reopen()
    assert applied(parts) == expected
    assert [bytes(body) for info, body in parts if info["kind"] == "ledger"] == [b"answers"]
    assert not host.names("snap-00000001-00000009")
    assert not [name for name in host.names("") if name.endswith(".tmp")]
    host.compact({"a": 3})
    assert applied(host.reopen()) == expected


def test_directory_is_whole_at_every_step(host: Host, tmp_path: Path) -> None:
    """Copies taken at each step stand for a machine that stops there."""
    expected = busy(host)
    copies: list[Path] = []

    def copy(done: str) -> None:
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(host.directory, copies[-1])

    host.compact({"a": 3}, on_step=copy)
    assert len(copies) >= 2 * len(STEPS)
    for directory in copies:
        other = Host(directory)
        assert applied(other.recovered.parts()) == expected
        other.log.close()


def test_log_goes_on_at_every_step(host: Host) -> None:
    expected = busy(host)
    added = iter(range(1000, 2000))

    def append(_: str) -> None:
        key = next(added)
        host.write([put("a", 5, {key: "while compacting"})])
        expected["a"][key, 0, None] = b"while compacting"

    host.compact({"a": 3}, on_step=append)
    assert next(added) > 1010
    assert applied(host.reopen()) == expected


def test_full_disk_leaves_the_state_and_no_half_snapshot(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = busy(host)
    host.log.rotate()
    writev = os.writev

    def full(fd: int, buffers: Sequence[memoryview]) -> int:
        if "snap-" in Path(f"/proc/self/fd/{fd}").resolve().name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return writev(fd, buffers)

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(CheckpointUnusable, match="No space left"):
        Compactor(host.log.generation).compact(host.directory, host.log.sealed(), {"a": 3})
    monkeypatch.undo()
    assert not [name for name in host.names("") if name.endswith(".tmp")]
    host.write([put("a", 5, {7: "the log goes on"})])
    host.compact({"a": 3})
    assert applied(host.reopen())["a"] == {**expected["a"], (7, 0, None): b"the log goes on"}


def test_damaged_segment_is_reported_and_nothing_is_removed(host: Host) -> None:
    host.write([define("a"), put("a", 1, {1: "xxxx"})], [put("a", 2, {1: "y"})])
    segment = host.directory / host.names("log")[0]
    segment.write_bytes(segment.read_bytes().replace(b"xxxx", b"xxzx"))
    before = host.names("")
    with pytest.raises(CheckpointCorrupt) as caught:
        host.compact({"a": 2})
    assert caught.value.fields["file"] == str(segment)
    assert set(before) <= set(host.names(""))


def test_rows_that_do_not_fit_their_schema_are_corruption(host: Host) -> None:
    host.write([define("a"), Part({"kind": "state", "op": "a", "batch": 1}, b"no record batch")])
    with pytest.raises(CheckpointCorrupt) as caught:
        host.compact({"a": 1})
    assert caught.value.fields["operators"] == "a"


def test_damaged_snapshot_is_found_on_recovery_and_on_compaction(host: Host) -> None:
    host.write([define("a"), put("a", 1, {1: "xxxx"})])
    host.compact({"a": 1})
    snapshot = host.directory / host.names("snap")[0]
    snapshot.write_bytes(snapshot.read_bytes().replace(b"xxxx", b"xxzx"))
    host.write([put("a", 2, {1: "y" * 500})])
    with pytest.raises(CheckpointCorrupt, match=snapshot.name):
        host.compact({"a": 2})
    with pytest.raises(CheckpointCorrupt, match=snapshot.name):
        host.reopen()


def test_missing_snapshot_is_named_with_its_operators(host: Host) -> None:
    host.write([define("clicks"), put("clicks", 1, {1: "x"})])
    host.compact({"clicks": 1})
    name = host.names("snap")[0]
    (host.directory / name).unlink()
    with pytest.raises(CheckpointCorrupt) as caught:
        host.reopen()
    assert caught.value.fields["operators"] == "clicks"
    assert name in str(caught.value)


@pytest.mark.parametrize("step", STEPS[:4])
def test_fenced_compactor_stops_and_takes_nothing_away(host: Host, step: str) -> None:
    expected = busy(host)
    newer: list[tuple[Changelog, Recovered]] = []

    def take_over(done: str) -> None:
        if done == step and not newer:
            newer.append(Changelog.open(host.directory))

    with pytest.raises(StaleGeneration):
        host.compact({"a": 3}, on_step=take_over)
    log, recovered = newer[0]
    assert applied(recovered.parts()) == expected
    log.flush(log.append([put("a", 5, {9: "new"})]))
    log.close()
    assert applied(host.reopen())["a"] == {**expected["a"], (9, 0, None): b"new"}


def test_compactor_of_an_older_generation_does_not_begin(host: Host) -> None:
    busy(host)
    host.log.rotate()
    stale, sealed = Compactor(host.log.generation), host.log.sealed()
    host.reopen()
    before = host.names("")
    with pytest.raises(StaleGeneration):
        stale.compact(host.directory, sealed, {"a": 3})
    assert host.names("") == before

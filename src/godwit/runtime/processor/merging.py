"""Many rows of a hot key become one where they are read, for processors that declare how: which rows, and what comes of them.

A hot key has one owner, which would have to apply all of its rows. Routers are many: each merges the rows of a block into one.
Which rows are merged depends only on the rows of the block and on how the batch was begun, so that a replay of the batch merges
the same rows. A merged row has the place, the number and the key of the last of its rows. The processor promises that the
merge leaves the same state. Hosts, lanes and ledgers are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.errors import DefinitionError
from godwit.runtime.processor.grouping import group_by_key
from godwit.runtime.processor.rows import Index, times_us
from godwit.state.keys import KeyCodec
from godwit.transport.wire import CHECK

Merge: TypeAlias = tuple[tuple[str, str], ...]  # column and way, in the order of the input

WAYS: Final = ("sum", "min", "max", "first", "last")
BLOCK_ROWS: Final = (
    1 << 15
)  # large enough that a merged row stands for many, small enough that hosts need not wait for it
HOT_ROWS_MIN: Final = 64  # fewer rows of a key cost their owner less than merging them costs here
HOT_PART: Final = 32  # a key is hot with one in this many rows of its block, so a block has at most this many hot keys
_BUCKETS: Final = 1 << 12  # by the low bits of the routing hash; hot keys stick out however many others share theirs
_SUM_MAX: Final = 2.0**62  # far enough from overflow that a double can tell
_PANE: Final = re.compile(r"pane of (\d+) us from (\d+)")
_DECIMAL_DIGITS_MAX: Final = 32  # sums of a block take six digits more, and Arrow has 38


# -- what is declared ------------------------------------------------------------------------------------------------


def checked_merge(declared: object, schema: pa.Schema, key_names: Sequence[str]) -> Merge:
    """The declaration in the order of the input's columns; it must have all columns that are no key."""
    if not isinstance(declared, Mapping):
        raise DefinitionError(
            f"merge is {declared!r:.80}", todo='Give columns with how they are merged, e.g. {"amount": "sum"}'
        )
    if not declared:
        return ()
    names = [name for name in schema.names if name not in key_names]
    for name in declared:
        if name not in names:
            what = "is a key, which is the same in all rows" if name in key_names else "is not in the input"
            raise DefinitionError(f"merge: column {name!r} {what}", todo=f"Declare {', '.join(names)}")
    missing = [name for name in names if name not in declared]
    if missing:
        raise DefinitionError(
            f"merge does not say what becomes of column {missing[0]!r}",
            todo=f"Declare it with one of {', '.join(WAYS)}, or drop the column before the operator",
        )
    for name in names:
        _check_way(name, declared[name], schema.field(name).type)
    return tuple((name, declared[name]) for name in names)


def pane_way(pane_us: int, offset_us: int) -> str:
    """The way of an event time of which windows make panes: only rows of one pane become one, at the newest of their times."""
    return f"pane of {pane_us} us from {offset_us}"


def _check_way(name: str, way: object, kind: pa.DataType) -> None:
    if isinstance(way, str) and _PANE.fullmatch(way) and pa.types.is_timestamp(kind):
        return
    if way not in WAYS:
        raise DefinitionError(f"merge: column {name!r} by {way!r}", todo=f"Use one of {', '.join(WAYS)}")
    if way == "sum" and not _can_add(kind):
        raise DefinitionError(
            f"merge: column {name!r} is {kind}, which has no sum",
            todo=f"Sum whole numbers, floats, or decimals of at most {_DECIMAL_DIGITS_MAX} digits; else use another way",
        )
    if way in ("min", "max") and not _has_order(kind):
        raise DefinitionError(f"merge: column {name!r} is {kind}, which has no {way}", todo="Use first or last")


def check_event_time(merge: Merge, event_time: str | None, lateness_ms: int = 0) -> None:
    """The event time of a merged row must be the newest or the oldest of its rows' event times."""
    way = dict(merge).get(event_time or "")
    if way is None or _PANE.fullmatch(way):
        return
    if lateness_ms:
        raise DefinitionError(
            "rows behind the watermark are not merged, and this processor takes them: merged ones would overtake them",
            todo="Leave allowed_lateness_ms at 0, or declare no merge",
        )
    if way not in ("min", "max"):
        raise DefinitionError(
            f"merge: the event time {event_time!r} by {way!r}", todo="Use max, or min: the newest or the oldest of them"
        )


def _can_add(kind: pa.DataType) -> bool:
    if pa.types.is_decimal128(kind):
        return bool(kind.precision <= _DECIMAL_DIGITS_MAX)
    return pa.types.is_signed_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)


def _has_order(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    is_time = pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    return _can_add(kind) or pa.types.is_decimal(kind) or is_text or is_bytes or is_time or pa.types.is_boolean(kind)


# -- what is done ----------------------------------------------------------------------------------------------------


class Merging:
    """What a router does with its blocks.

    `late_us`: rows with an event time up to this may be late. Hosts decide that of each row, so these stay as they are.
    """

    def __init__(
        self,
        merge: Merge,
        schema: pa.Schema,
        key_names: Sequence[str],
        event_time: str | None = None,
        late_us: int | None = None,
    ) -> None:
        self._merge = merge
        self._codec = KeyCodec(pa.schema([schema.field(name) for name in key_names]))
        self._event_time, self._late_us = event_time, late_us

    def merged(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """The block with one row for each hot key; its last column is the routing hash."""
        hot = self._hot(block)
        return fold(block, hot, self._merge) if hot else block

    def _hot(self, block: pa.RecordBatch) -> list[Index]:
        """Where the rows of each hot key are. Costs one count of hashes if there is none."""
        enough = max(HOT_ROWS_MIN, -(-len(block) // HOT_PART))
        if len(block) < enough:
            return []
        bucket = block.column(block.num_columns - 1).to_numpy() & (_BUCKETS - 1)
        crowded = np.bincount(bucket, minlength=_BUCKETS) >= enough
        if not crowded.any():
            return []
        at = self._on_time(block, np.flatnonzero(crowded[bucket]))
        # Keys themselves are compared: others may share a hot key's bucket, and even its hash.
        hot = by_key(block, at, self._codec, enough)
        parts = [part for rows in hot for part in apart(block, rows, self._merge)]
        return [part for part in parts if len(part) >= HOT_ROWS_MIN]

    def _on_time(self, block: pa.RecordBatch, at: Index) -> Index:
        if self._event_time is None or self._late_us is None:
            return at
        return at[times_us(_column(block, self._event_time).take(at)) > self._late_us]


def by_key(block: pa.RecordBatch, at: Index, codec: KeyCodec, rows_min: int = 1) -> list[Index]:
    """The rows of each key that has at least `rows_min` among these rows, in order."""
    keys = block.select(codec.schema.names).take(at)
    rows = group_by_key(keys, at, codec)
    many = np.flatnonzero(rows.counts >= rows_min).tolist()
    return [at[rows.order[rows.bounds[i] : rows.bounds[i + 1]]] for i in many]


def apart(block: pa.RecordBatch, rows: Index, merge: Merge) -> list[Index]:
    """Which rows of a key may become one: all, or those of each pane."""
    for name, way in merge:
        if (pane_of := _PANE.fullmatch(way)) is not None:
            known = rows[_column(block, name).take(rows).is_valid().to_numpy(zero_copy_only=False)]
            pane = (times_us(_column(block, name).take(known)) - int(pane_of[2])) // int(pane_of[1])
            order = np.argsort(pane, kind="stable")
            bounds = np.flatnonzero(np.diff(pane[order])) + 1
            return [part for part in np.split(known[order], bounds) if len(part)]
    return [rows]


def _column(block: pa.RecordBatch, name: str) -> pa.Array[Any]:
    return block.column(block.schema.get_field_index(name))


def fold(block: pa.RecordBatch, groups: Sequence[Index], merge: Merge) -> pa.RecordBatch:
    """The block with one row for each group, in the place of its last row; other rows stay."""
    folded = [(rows, values) for rows in groups if (values := _values(block, rows, merge)) is not None]
    if not folded:
        return block
    gone = np.zeros(len(block), np.bool_)
    for rows, _ in folded:
        gone[rows] = True
    rest = np.flatnonzero(~gone)
    last = np.array([rows[-1] for rows, _ in folded], np.int64)
    order = np.argsort(np.concatenate([rest, last]))
    columns = []
    for name, column in zip(block.schema.names, block.columns, strict=True):
        if name == CHECK:
            ends = pa.array([_joint_check(column, rows) for rows, _ in folded], column.type)
        elif name in dict(merge):
            ends = pa.array([values[name] for _, values in folded], column.type)
        else:
            ends = column.take(last)
        columns.append(pa.concat_arrays([column.take(rest), ends]).take(order))
    return pa.RecordBatch.from_arrays(columns, schema=block.schema)


def _joint_check(column: pa.Array[Any], rows: Index) -> int:
    """The check of a merged row is the sum of the checks of its rows, in 32 bits: so a replay compares all of them."""
    total = int(column.to_numpy()[rows].astype(np.int64).sum())
    return (total + (1 << 31)) % (1 << 32) - (1 << 31)


def _values(block: pa.RecordBatch, rows: Index, merge: Merge) -> dict[str, Any] | None:
    """The merged value of each column; None if a sum does not fit its column, so that these rows are not merged."""
    values: dict[str, Any] = {}
    for name, way in merge:
        column = _column(block, name).take(rows).drop_null()
        if not len(column):
            values[name] = None
        elif way == "sum":
            values[name] = _sum(column)
            if values[name] is None:
                return None
        else:
            values[name] = _one_of(column, way)
    return values


def _sum(column: pa.Array[Any]) -> Any:
    if pa.types.is_integer(column.type) and np.abs(column.to_numpy().astype(np.float64)).sum() >= _SUM_MAX:
        return None
    try:
        return pc.sum(column).cast(column.type)
    except pa.ArrowInvalid:
        return None


def _one_of(column: pa.Array[Any], way: str) -> Any:
    """One of the values. As in Spark, NaN is larger than any number."""
    match way:
        case "first":
            return column[0]
        case "last":
            return column[len(column) - 1]
        case "min":
            return pc.min(column)
        case _:  # max, also of the times within a pane
            nan = column.filter(pc.is_nan(column)) if pa.types.is_floating(column.type) else column.slice(0, 0)
            return nan[0] if len(nan) else pc.max(column)

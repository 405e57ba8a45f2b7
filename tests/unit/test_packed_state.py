"""State of a flock as bytes for Spark: what goes along, and what a processor of Spark gets of it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from godwit.errors import DefinitionError
from godwit.runtime.processor.spec import OperatorSpec, TimeMode
from godwit.spark.porting import packed_state
from godwit.spark.porting.packed_state import PackedState, key_and_state, unpacked
from godwit.spark.porting.restoring import FIRST_BATCH_MS, Restoring
from godwit.state.changes import LETTERS, PUT, TIMERS, Changes, position_sub, timer_sub
from godwit.state.codec import compile_codec
from godwit.state.deadlines import stamped_at
from godwit.state.keys import KeyCodec
from godwit.state.layout import PastForm
from godwit.state.variables import Variable

KEY = pa.schema({"host": pa.string(), "at": pa.timestamp("us", tz="UTC")})
LONG = pa.schema({"n": pa.int64()})
WORD = pa.schema({"word": pa.string()})
VARIABLES = (Variable("v", "value", LONG), Variable("l", "list", LONG, ttl_ms=5), Variable("m", "map", LONG, WORD))
KEYS = [("a", 0), ("b", None)]
NOW_MS = 1_000


def number(n: int) -> bytes:
    return compile_codec(LONG).encode((n,))


def changes(*blocks: tuple[int, Any, list[bytes] | None, list[bytes] | None]) -> list[pa.RecordBatch]:
    made = Changes()
    for var, key, subs, values in blocks:
        made.add(var, PUT, [key] * len(subs or values or []), subs, values)
    return [made.to_batch(KeyCodec(KEY))]


def packed(batches: list[pa.RecordBatch], **more: Any) -> dict[Any, Any]:
    spec = OperatorSpec("op", "P", "row", KEY, LONG, VARIABLES, **more)
    rows = [row for batch in PackedState(NOW_MS).rows(spec, batches, "host-0", 1) for row in _values(batch)]
    assert all(tuple(row[2:4]) == ("host-0", 1) for row in rows)
    return {row[0]: unpacked(row[-1]) for row in rows}


def _values(batch: pa.RecordBatch) -> Any:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def test_all_kinds_of_state_go_along_with_timers_in_milliseconds() -> None:
    sub = compile_codec(WORD).encode(("x",))
    ends = [stamped_at(end_ms, number(end_ms)) for end_ms in (NOW_MS + 1, NOW_MS, NOW_MS + 2)]
    batches = changes(
        (0, KEYS[0], None, [number(7)]),
        (1, KEYS[0], [position_sub(at) for at in range(3)], ends),
        (2, KEYS[0], [sub], [number(8)]),
        (TIMERS, KEYS[0], [timer_sub(at_ms) for at_ms in (2**63 - 1, -5)], None),
        (1, KEYS[1], [position_sub(0)], [stamped_at(NOW_MS, number(1))]),
    )
    assert packed(batches) == {
        "a": ([[number(7)], [number(NOW_MS + 1), number(NOW_MS + 2)], [[sub, number(8)]]], [2**63 - 1, -5])
    }


def test_dead_letters_and_variables_that_are_not_declared_stay_behind() -> None:
    batches = changes((LETTERS, KEYS[0], [position_sub(0)], [b"letter"]), (3, KEYS[1], None, [number(1)]))
    past = PastForm(3, Variable("old", "value", LONG))
    assert packed(batches, past=(past,)) == {}


def test_much_state_comes_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_state, "_BYTES_MAX", 2_000)
    batches = changes(*((0, (f"k{n}", n), None, [bytes(700)]) for n in range(7)))
    spec = OperatorSpec("op", "P", "row", KEY, LONG, VARIABLES)
    sizes = [len(batch) for batch in PackedState(0).rows(spec, batches, "host-0", 1)]
    assert sizes == [3, 3, 1]


def test_a_key_column_may_be_named_as_a_column_of_the_flock() -> None:
    spec = OperatorSpec("op", "P", "row", KEY, LONG, VARIABLES)
    (batch,) = PackedState(0).rows(spec, changes((0, KEYS[0], None, [number(7)])), "host-0", 1)
    shaped = key_and_state(batch)
    assert shaped.schema.names == ["host", "at", packed_state.COLUMN]
    assert shaped.column(0).to_pylist() == ["a"]


# -- in Spark's processor ----------------------------------------------------------------------------------------------


class Store:
    """What a processor of Spark calls, and what was called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: self.calls.append((name, *given, *more.values())) or self

    def registerTimer(self, at_ms: int) -> None:
        self.calls.append(at_ms)


class Moment:
    def __init__(self, at_ms: int) -> None:
        self.getCurrentProcessingTimeInMs = self.getCurrentWatermarkInMs = lambda: at_ms


class Declaring:
    def init(self, handle: Any) -> None:
        handle.getValueState("v", "at timestamp", ttlDurationMs=5)


AT = Variable("v", "value", pa.schema({"at": pa.timestamp("us", tz="UTC")}), ttl_ms=5)


def restored(time_mode: TimeMode, at_ms: int, timers: list[int]) -> list[Any]:
    processor, store = Restoring(Declaring(), [AT], time_mode, NOW_MS), Store()  # type: ignore[arg-type]
    processor.init(store)  # type: ignore[arg-type]
    state = packed_state.msgpack.packb([[compile_codec(AT.schema).encode((dt.datetime(2024, 5, 1),))], timers])
    processor.handleInitialState(("a",), Row(id="a", state=state), Moment(at_ms))
    return store.calls


def test_instants_know_their_zone_and_a_ttl_ends_as_if_it_began_with_the_newest_batch() -> None:
    declared, updated, *timers = restored("processingTime", FIRST_BATCH_MS, [7, -3, 2**63 - 1])
    assert declared == ("getValueState", "v", "at timestamp", NOW_MS + 5 - FIRST_BATCH_MS)
    assert updated == ("update", (dt.datetime(2024, 5, 1, tzinfo=dt.UTC),))
    assert timers == [-3, 7, 2**63 - 1]


def test_timers_that_would_be_due_come_one_after_the_other() -> None:
    assert restored("eventTime", 0, [2, -9, 0, 9])[2:] == [1, 2, 3, 9]
    assert restored("processingTime", FIRST_BATCH_MS, [FIRST_BATCH_MS, -(2**63), 0])[2:] == [
        FIRST_BATCH_MS + 1,
        FIRST_BATCH_MS + 2,
        0,
    ]


@pytest.mark.parametrize("time_mode", ["processingTime", "eventTime"])
def test_a_batch_at_another_time_is_refused(time_mode: TimeMode) -> None:
    with pytest.raises(DefinitionError, match="in which no timer is due") as caught:
        restored(time_mode, 5, [])
    assert caught.value.fields["key"] == "('a',)"
    assert "continue_in_spark" in (caught.value.todo or "")

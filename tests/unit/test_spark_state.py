"""State of Spark as rows of state, and where a flock goes on, without Spark."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from godwit.errors import CheckpointMismatch
from godwit.model.start import Start
from godwit.runtime.durable.batch_in_progress import BatchInProgress
from godwit.runtime.messages import Admit
from godwit.runtime.processor.spec import OperatorSpec
from godwit.spark.checkpoint.run_admission import Admitted, RunAdmission
from godwit.spark.porting.spark_state import SparkState, _check_declared
from godwit.spark.porting.stored_rows import Encoder, plain
from godwit.state.changes import position_sub
from godwit.state.codec import compile_codec
from godwit.state.deadlines import STAMP_BYTES, expiry_ms
from godwit.state.variables import Variable

LONG = pa.schema({"n": pa.int64()})
WORD = pa.schema({"word": pa.string(), "at": pa.timestamp("us", tz="UTC")})
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)


def encoded(old: Variable, cells: list[Any], subs: list[Any] | None = None, new: Variable | None = None) -> list[Any]:
    """From what Spark's reader shows, as Arrow has it."""
    value: Any = pa.struct(list(old.schema))
    cell = value if old.ttl_ms is None else pa.struct([("value", value), ("ttlExpirationMs", pa.int64())])
    cell = pa.list_(cell) if old.kind == "list" else cell
    sub = pa.int32() if old.key_schema is None else pa.struct(list(old.key_schema))
    given = plain(pa.array(subs or [None] * len(cells), sub)), plain(pa.array(cells, cell))
    return list(Encoder(old, new or old).encode(*given))


def test_a_value_is_stored_as_the_processor_would_store_it() -> None:
    rows = encoded(Variable("v", "value", WORD), [{"word": "a", "at": NOON}, {"word": None, "at": None}])
    decode = compile_codec(WORD).decode
    assert [(at, sub) for at, sub, _ in rows] == [(0, None), (1, None)]
    assert [decode(value) for *_, value in rows] == [("a", NOON.replace(tzinfo=None)), (None, None)]


def test_the_elements_of_a_list_stay_in_order() -> None:
    rows = encoded(Variable("v", "list", LONG), [[{"n": 5}, {"n": 3}], [], [{"n": 1}]])
    assert [(at, sub) for at, sub, _ in rows] == [(0, position_sub(0)), (0, position_sub(1)), (2, position_sub(0))]
    assert [compile_codec(LONG).decode(value) for *_, value in rows] == [(5,), (3,), (1,)]


def test_a_map_has_an_entry_per_row() -> None:
    key = pa.schema({"word": pa.string()})
    rows = encoded(Variable("v", "map", LONG, key), [{"n": 1}], [{"word": "a"}])
    assert rows == [(0, compile_codec(key).encode(("a",)), compile_codec(LONG).encode((1,)))]


def test_a_map_in_a_field_may_have_any_keys() -> None:
    """Structs and arrays are dicts and lists as Arrow gives them to Python, and no dict has these as keys."""
    pair = pa.struct({"a": pa.int32(), "l": pa.list_(pa.int32())})
    schema = pa.schema({"m": pa.map_(pair, pa.map_(pa.string(), pair)), "none": pa.map_(pair, pair)})
    cell = {
        "m": [({"a": 1, "l": [2, None]}, [("x", {"a": None, "l": None})]), ({"a": 3, "l": None}, None)],
        "none": None,
    }
    ((_, _, value),) = encoded(Variable("v", "value", schema), [cell])
    keys, values = [[1, [2, None]], [3, None]], [[["x"], [[None, None]]], None]
    assert msgpack.unpackb(value) == [[keys, values], None]


def test_an_entry_with_a_ttl_keeps_its_end() -> None:
    ((_, _, value),) = encoded(Variable("v", "value", LONG, ttl_ms=1), [{"value": {"n": 7}, "ttlExpirationMs": 12345}])
    assert expiry_ms(value) == 12345
    assert compile_codec(LONG).decode(value[STAMP_BYTES:]) == (7,)


def test_a_field_may_become_wider_and_others_be_added() -> None:
    new = pa.schema({"more": pa.string(), "n": pa.int64()})
    old = Variable("v", "value", pa.schema({"n": pa.int32()}))
    ((_, _, value),) = encoded(old, [{"n": 7}], new=Variable("v", "value", new))
    assert compile_codec(new).decode(value) == (None, 7)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (Variable("v", "list", LONG), "a value state in the checkpoint and a list state now"),
        (Variable("v", "value", LONG, ttl_ms=5), "TTL"),
        (Variable("v", "value", pa.schema({"n": pa.string()})), "'n'"),
        (Variable("w", "value", LONG), "'v', which init does not declare"),
    ],
)
def test_state_that_does_not_fit_is_named(declared: Variable, said: str) -> None:
    with pytest.raises(CheckpointMismatch, match=said):
        _check_declared([Variable("v", "value", LONG)], spec(variables=(declared,)), ())


def test_a_deleted_variable_is_left_behind() -> None:
    _check_declared([Variable("v", "value", LONG)], spec(), ("v",))


# -- where it goes on --------------------------------------------------------------------------------------------------


def spec(**fields: Any) -> OperatorSpec:
    return OperatorSpec("op", "P", "row", LONG, LONG, **{"variables": (), **fields})


def test_the_first_batch_has_the_watermarks_that_spark_would_have_had() -> None:
    start = Start("q", 7, late_ms=1000, watermark_ms=5000)
    watermark = BatchInProgress.first(spec(time_mode="eventTime", delay_ms=600, start=start)).watermark
    assert watermark.upcoming() == 5000
    watermark.next_batch()
    assert (watermark.late, watermark.eviction) == (1000, 5000)
    watermark.report("0", 9000)
    watermark.next_batch()
    assert (watermark.late, watermark.eviction) == (5000, 8400)


def test_the_slowest_lane_does_not_wait_for_lanes_of_the_old_query() -> None:
    watermark = Start("q", 7, 1000, 5000).watermark(600, "min")
    watermark.report("0", 9000)
    watermark.next_batch()
    assert (watermark.late, watermark.eviction) == (5000, 8400)


def test_the_checkpoint_remembers_where_the_state_ends() -> None:
    started = spec(start=Start("q", 7, 1, 2))
    assert OperatorSpec.from_dict(started.to_dict()) == started
    assert "start" not in spec().to_dict()


@pytest.mark.parametrize(
    ("query", "batch", "fresh", "admitted"),
    [("q", 8, True, True), ("q", 7, True, False), ("q", 0, True, False), ("r", 8, True, False), ("q", 3, False, True)],
)
def test_only_the_batches_behind_the_state_are_admitted(query: str, batch: int, fresh: bool, admitted: bool) -> None:
    admission = RunAdmission(None, accept_gaps=False)  # type: ignore[arg-type]  # Spark is not asked here
    admission.operators["op"] = Admitted(start=Start("q", 7))
    request = Admit("op", query, "run", batch, -1 if fresh else 2, fresh)
    if not admitted:
        with pytest.raises(CheckpointMismatch, match="taken over from query q of Spark after its batch 7"):
            admission._started(request)
        return
    assert admission._started(request).last_batch == (7 if fresh else 2)


def test_a_query_may_be_meant_to_read_other_rows() -> None:
    admission = RunAdmission(None, accept_gaps=True)  # type: ignore[arg-type]  # Spark is not asked here
    admission.operators["op"] = Admitted(start=Start("q", 7))
    assert admission._started(Admit("op", "r", "run", 0, -1, True)).batch == 0


def test_a_state_is_shown_by_its_checkpoint_and_not_by_the_session() -> None:
    state = SparkState(object(), "/data/old")  # type: ignore[arg-type]
    assert repr(state) == "SparkState(checkpoint='/data/old', operator_id=0)"

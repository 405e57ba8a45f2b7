"""What a checkpoint keeps of an operator, and which other definitions it refuses, with what words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from godwit.errors import CheckpointMismatch
from godwit.runtime.processor.spec import OperatorSpec, schema_of, schema_text
from godwit.state.variables import Variable

TOTAL = Variable("total", "value", pa.schema({"n": pa.int64()}))
WORDS = Variable("words", "map", pa.schema({"n": pa.int32()}), pa.schema({"word": pa.string()}), 60_000)
SPEC = OperatorSpec(
    name="speed",
    processor="Mean",
    flavour="row",
    key_schema=pa.schema({"car": pa.string()}),
    output_schema=pa.schema({"car": pa.string(), "mean": pa.float64()}),
    variables=(TOTAL, WORDS),
    time_mode="eventTime",
    event_time="at",
    delay_ms=1000,
    watermark_policy="min",
    lateness_ms=50,
    null_keys="bucket",
    tz="Europe/Vienna",
    timeout_s=5.0,
    ephemeral=True,
)


def test_a_spec_survives_json_with_everything_in_it() -> None:
    assert OperatorSpec.from_dict(json.loads(json.dumps(SPEC.to_dict()))) == SPEC


def test_the_json_form_has_every_field() -> None:
    assert set(SPEC.to_dict()) == set(OperatorSpec.__dataclass_fields__)


def test_a_schema_survives_as_text_with_nullability_and_metadata() -> None:
    schema = pa.schema([pa.field("a", pa.timestamp("us", tz="UTC"), nullable=False, metadata={"k": "v"})])
    assert schema_of(schema_text(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"key_schema": pa.schema({"bus": pa.string()})}, r"key \(bus string\) instead of \(car string\)"),
        ({"key_schema": pa.schema({"car": pa.int64()})}, r"key \(car int64\) instead of \(car string\)"),
        ({"processor": "Median"}, r"processor Median \(row\) instead of Mean \(row\)"),
        ({"flavour": "pandas"}, r"processor Mean \(pandas\) instead of Mean \(row\)"),
        (
            {"output_schema": pa.schema({"car": pa.string()})},
            r"output \(car string\) instead of \(car string, mean double\)",
        ),
        ({"time_mode": "none"}, "timeMode none instead of eventTime"),
        ({"variables": (TOTAL,)}, r"state variable 'words' is missing or out of its place \(number 2\)"),
        ({"variables": (WORDS, TOTAL)}, r"state variable 'total' is missing or out of its place \(number 1\)"),
        ({"variables": (replace(TOTAL, kind="list"), WORDS)}, "'total' has another type, kind or time to live"),
        (
            {"variables": (replace(TOTAL, schema=pa.schema({"n": pa.float64()})), WORDS)},
            "'total' has another type, kind or time to live",
        ),
        ({"variables": (TOTAL, replace(WORDS, ttl_ms=None))}, "'words' has another type, kind or time to live"),
        (
            {"variables": (TOTAL, replace(WORDS, key_schema=pa.schema({"word": pa.int64()})))},
            "'words' has another type, kind or time to live",
        ),
    ],
)
def test_another_definition_is_refused_and_the_difference_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointMismatch, match=said) as caught:
        replace(SPEC, **changed).check_fits(SPEC)
    assert caught.value.fields["operator"] == "speed"
    assert "Use the definition that made the checkpoint" in str(caught.value)


def test_all_differences_are_told_at_once() -> None:
    other = replace(SPEC, processor="Median", time_mode="none", variables=(TOTAL,))
    assert len(other.differences(SPEC)) == 3


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"variables": (TOTAL, WORDS, Variable("more", "list", pa.schema({"x": pa.int8()})))},
        {"timeout_s": 1.0},
        {"delay_ms": 9},
        {"watermark_policy": "max"},
        {"null_keys": "error"},
        {"lateness_ms": 0},
    ],
)
def test_what_state_does_not_depend_on_may_change(changed: dict[str, Any]) -> None:
    replace(SPEC, **changed).check_fits(SPEC)

"""What a checkpoint keeps of an operator, and which other definitions it refuses, with what words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from godwit.errors import CheckpointMismatch
from godwit.model.start import Start
from godwit.runtime.processor.spec import OperatorSpec, schema_of, schema_text
from godwit.state.layout import PastForm
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
    past = (PastForm(2, TOTAL, deleted=True),)
    spec = replace(SPEC, numbers=(1, 0), past=past, outputs=1, start=Start("q", 7), life=1)
    assert set(spec.to_dict()) == set(OperatorSpec.__dataclass_fields__)


def test_a_schema_survives_as_text_with_nullability_and_metadata() -> None:
    schema = pa.schema([pa.field("a", pa.timestamp("us", tz="UTC"), nullable=False, metadata={"k": "v"})])
    assert schema_of(schema_text(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"key_schema": pa.schema({"bus": pa.string()})},
            r"key is \(car string\) in the checkpoint and \(bus string\) now",
        ),
        (
            {"key_schema": pa.schema({"car": pa.int64()})},
            r"key is \(car string\) in the checkpoint and \(car int64\) now",
        ),
        ({"flavour": "native"}, "kind of processor is StatefulProcessor in the checkpoint and godwit.Processor now"),
        ({"time_mode": "none"}, "timeMode is eventTime in the checkpoint and none now"),
    ],
)
def test_another_key_time_or_kind_of_processor_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointMismatch, match=message) as caught:
        replace(SPEC, **changed).after(SPEC)
    assert caught.value.fields["operator"] == "speed"
    assert "Use the definition that made the checkpoint" in caught.value.todo


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (replace(TOTAL, kind="list"), "'total': it is a value state in the checkpoint and a list state now"),
        (
            replace(TOTAL, schema=pa.schema({"n": pa.int32()})),
            "'total': field 'n' is int64 in the checkpoint and int32 now: values may not fit",
        ),
        (replace(WORDS, ttl_ms=None), "'words': its TTL is 60000 ms in the checkpoint and none now"),
        (replace(WORDS, key_schema=pa.schema({"word": pa.int64()})), r"'words': the key of the map is \(word string\)"),
    ],
)
def test_a_variable_that_cannot_be_converted_is_refused_with_a_way_out(variable: Variable, message: str) -> None:
    with pytest.raises(CheckpointMismatch, match=message) as caught:
        replace(SPEC, variables=(variable,)).after(SPEC)
    assert caught.value.fields["operator"] == "speed"
    assert "another name" in caught.value.todo
    assert "deleteIfExists" in caught.value.todo
    assert replace(SPEC, variables=(variable,)).after(SPEC, [variable.name]).numbers == (2,)


def test_all_refusals_come_at_once() -> None:
    narrower = replace(TOTAL, schema=pa.schema({"n": pa.int32()}))
    with pytest.raises(CheckpointMismatch) as caught:
        replace(SPEC, time_mode="none", variables=(narrower, replace(WORDS, kind="list"))).after(SPEC)
    assert all(each in caught.value.message for each in ("timeMode", "'total'", "'words'"))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"processor": "Median"},
        {"flavour": "pandas"},
        {"variables": (TOTAL, WORDS, Variable("more", "list", pa.schema({"x": pa.int8()})))},
        {"variables": (TOTAL, replace(WORDS, ttl_ms=1))},
        {"timeout_s": 1.0},
        {"delay_ms": 9},
        {"watermark_policy": "max"},
        {"null_keys": "error"},
        {"lateness_ms": 0},
    ],
)
def test_what_state_does_not_depend_on_may_change(changed: dict[str, Any]) -> None:
    after = replace(SPEC, **changed).after(SPEC)
    assert after == replace(SPEC, **changed)
    assert "past" not in after.to_dict(), "older versions can read it"


def test_a_definition_remembers_the_forms_before_it() -> None:
    spec = replace(SPEC, variables=(WORDS, replace(TOTAL, schema=pa.schema({"n": pa.float64()})))).after(SPEC)
    assert (spec.numbers, [past.successor for past in spec.past]) == ((1, 2), [2])
    assert OperatorSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert spec.succeeds(SPEC)
    assert not SPEC.succeeds(spec)


def test_changes_of_the_output_are_counted() -> None:
    narrow = pa.schema({"car": pa.string()})
    after = replace(SPEC, output_schema=narrow).after(SPEC)
    assert (after.outputs, SPEC.after(after).outputs, after.after(after).outputs) == (1, 2, 1)


def test_a_document_of_an_older_version_is_read() -> None:
    document = {name: value for name, value in SPEC.to_dict().items() if name not in ("numbers", "past", "outputs")}
    assert OperatorSpec.from_dict(document) == SPEC
    assert SPEC.layout.numbers == (0, 1)


def test_columns_beside_the_key_have_names_of_their_own() -> None:
    key = pa.schema(dict.fromkeys(("Host", "n", "n_state", "TIMERS"), pa.string()))
    spec = OperatorSpec("op", "P", "row", key, key, ())
    beside = ["host_godwit", "epoch", "timers_godwit"]
    assert spec.names_beside_key([], "_state") == beside
    assert spec.names_beside_key(["N", "epoch", "m", "M"], "_state") == [
        *beside,
        "N_state_state",
        "epoch_state",
        "m",
        "M_state",
    ]

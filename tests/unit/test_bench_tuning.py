"""The benchmark of settings leaves every setting out once, but those without which no row leaves."""

from __future__ import annotations

import pytest

import godwit
from benchmarks.command.tuning_flags import summary
from benchmarks.running.triggers import MICRO_BATCH, REAL_TIME, Trigger
from benchmarks.spark_settings.tuning import ALL, EVERYTHING, NEEDED, NO_JAVA, TuningSettings, left_out
from godwit.errors import DefinitionError


@pytest.mark.parametrize("trigger", [MICRO_BATCH, REAL_TIME])
def test_every_setting_is_left_out_once(trigger: Trigger) -> None:
    names = {each.name for each in godwit.tuning(real_time=trigger == REAL_TIME)}
    sessions = left_out(trigger)
    assert next(iter(sessions)) == ALL, "the others are compared with it"
    assert sessions[ALL].keys() == names
    single = sessions.keys() - {ALL, EVERYTHING, NO_JAVA}
    assert single == (names - NEEDED if trigger == REAL_TIME else names)
    assert all(sessions[name].keys() == names - {name} for name in single)


def test_the_settings_that_real_time_needs_are_settings_of_real_time() -> None:
    assert {each.name for each in godwit.tuning(real_time=True)} >= NEEDED


def test_without_the_java_class_arrow_batches_have_one_row() -> None:
    assert left_out(REAL_TIME)[NO_JAVA]["spark.sql.execution.arrow.maxRecordsPerBatch"] == "1"


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(DefinitionError, match="must be over 0"):
        TuningSettings(batches=0).checked()


def test_a_line_says_what_was_left_out_and_what_it_cost() -> None:
    line = {"trigger": MICRO_BATCH, "left_out": "spark.a", "batch_ms": 120.4, "ratio": 1.204}
    assert summary(line) == "left out: spark.a: 120 ms a batch, 1.20 of that with all settings"
    line = {"trigger": REAL_TIME, "left_out": "spark.a", "p50_ms": 8.1, "p99_ms": 20.0, "ratio": 1.0}
    assert summary(line) == "left out: spark.a: p50 8.1 ms, p99 20.0 ms, 1.00 of that with all settings"

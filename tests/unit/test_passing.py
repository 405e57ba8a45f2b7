"""Rows from Kafka to Kafka while nothing moves: what counts as a mistake, and which rows belong to the end of a batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.experiments.passing import PassingSettings, around_boundaries, exactness
from benchmarks.experiments.rest_in_real_time import LoadedSettings
from benchmarks.workloads.computation import drawn_keys
from godwit.errors import DefinitionError
from godwit.testing.latency import Departures
from godwit.workload import Workload

WORKLOAD = Workload(rows_per_second=100, keys=5, lanes=1, rows=50, seed=1)


def outputs() -> list[tuple[int, int]]:
    """(key, count) of each row, as they should come."""
    seen: dict[int, int] = {}
    rows = []
    for key in drawn_keys(WORKLOAD).tolist():
        seen[key] = seen.get(key, 0) + 1
        rows.append((key, seen[key]))
    return rows


def judged(rows: list[tuple[int, int]], way: str = "native") -> dict[str, int]:
    columns = {name: pa.array([row[at] for row in rows], pa.int64()) for at, name in enumerate(("key", "count"))}
    return exactness(pa.table(columns), WORKLOAD, way)


def test_rows_that_came_as_they_should_are_exact() -> None:
    assert judged(outputs()) == {"lost": 0, "duplicated": 0, "out_of_order": 0}


def test_rows_that_are_lost_repeated_or_misplaced_are_counted() -> None:
    rows = outputs()
    assert judged(rows[1:])["lost"] == 1
    assert judged([*rows, rows[-1]])["duplicated"] == 1
    assert judged(rows[::-1])["out_of_order"] > 0


def test_of_a_copy_only_the_number_of_rows_is_known() -> None:
    copied = [(key, 0) for key, _ in outputs()]
    assert judged(copied, "copy") == {"lost": 0, "duplicated": 0}
    assert judged(copied[2:], "copy") == {"lost": 2, "duplicated": 0}
    assert judged([*copied, copied[0]], "copy") == {"lost": 0, "duplicated": 1}


def test_the_end_of_a_batch_has_the_rows_of_a_second_before_and_after_it() -> None:
    left_s = np.arange(0.0, 30.0, 0.1)
    waits_ms = np.where(np.abs(left_s - 20.0) < 0.95, 50.0, np.where(np.abs(left_s - 10.0) < 0.95, 80.0, 5.0))
    rows = Departures(left_s, waits_ms)
    assert around_boundaries(rows, [20.0]) == 50.0
    assert around_boundaries(rows, [10.0, 20.0]) == 80.0
    assert around_boundaries(rows, [25.0]) == 5.0
    assert around_boundaries(rows, []) is around_boundaries(rows, [99.0]) is None


@pytest.mark.parametrize("told", [{"rate": 0}, {"steady_s": 0.0}, {"hosts": 1}, {"way": "live"}, {"keys": 0}])
def test_settings_that_make_no_sense_are_refused(told: dict[str, object]) -> None:
    with pytest.raises(DefinitionError):
        LoadedSettings(**told).checked()  # type: ignore[arg-type]


def test_a_load_at_rest_lasts_longer_than_what_is_measured() -> None:
    settings = LoadedSettings(rate=100, steady_s=5.0).checked()
    assert settings.rows > 100 * settings.steady_s
    assert settings.slots == PassingSettings().slots


def test_the_last_batch_is_waited_for_unless_it_lasts_for_minutes() -> None:
    assert PassingSettings().ends_soon, "as long as the load"
    assert PassingSettings(batch_s=10.0).ends_soon
    assert not PassingSettings(batch_s=300.0).ends_soon

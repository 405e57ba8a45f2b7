"""The measurements of costs, failures and throughput, each in a short run: exact, and with the figures that it is made for."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from benchmarks.experiments import costs, failure, stopwatch, throughput
from benchmarks.experiments.costs import RestSettings
from benchmarks.experiments.failure import FailureSettings
from benchmarks.experiments.throughput import ThroughputSettings
from godwit.spark import workload_source as workload
from godwit.spark.define import operator_frame

EXACT = {"lost": 0, "duplicated": 0, "out_of_order": 0, "wrong_state": 0}


class Watch:
    def phase(self, text: str) -> None:
        pass

    def rows(self, seen: int, total: int) -> None:
        pass


@pytest.fixture(autouse=True)
def _source(spark: SparkSession) -> None:
    workload.register(spark)


def exactness(found: dict[str, Any]) -> dict[str, int]:
    return {name: found[name] for name in EXACT}


@pytest.mark.long
def test_the_time_of_a_row_is_told_part_by_part(spark: SparkSession) -> None:
    settings = ThroughputSettings(keys=100, hosts=1, lanes=1, batch_rows=2_000, warm_up=2, batches=3, profile=True)
    router_body = operator_frame._router_body
    found = throughput.measure(spark, settings.checked(), Watch())
    parts = found["microseconds_per_row"]
    assert sum(parts.values()) == pytest.approx(1e6 / found["rows_per_s"], rel=0.01)
    assert set(stopwatch.HOST_PARTS) < set(parts)
    assert min(parts.values()) > 0, parts
    assert found["wrong_state"] == 0
    assert operator_frame._router_body is router_body, "operators that are defined later are not timed"


@pytest.mark.long
@pytest.mark.parametrize("way", ["sql", "pandas"])
def test_operators_of_spark_are_measured_on_the_same_rows(spark: SparkSession, way: Any) -> None:
    settings = ThroughputSettings(way, keys=10, batch_rows=50, warm_up=1, batches=2)
    found = throughput.measure(spark, settings.checked(), Watch())
    assert found["rows_per_s"] > 0
    assert spark.conf.get("spark.sql.streaming.stateStore.providerClass", "").find("RocksDB") < 0, "as it was before"


@pytest.mark.long
@pytest.mark.parametrize("way", ["no-support", "at-rest", "standby"])
def test_only_copies_that_stand_cost_something_at_rest(spark: SparkSession, way: Any) -> None:
    settings = RestSettings(way, keys=500, batch_rows=1_000, batches=4)
    found = costs.measure(spark, settings.checked(), Watch())
    assert exactness(found) == EXACT
    assert (found["rest_bytes_per_s"] > 0) == (way == "standby")
    assert found["rows_per_s"] > 0
    assert found["rest_memory_bytes"] > 10_000_000


@pytest.mark.long
def test_a_killed_host_is_back_and_nothing_is_lost(spark: SparkSession) -> None:
    settings = FailureSettings(keys=200, state_bytes=0, rate=200, warm_up_s=0.5, steady_s=1.5, after_s=4.0)
    found = failure.measure(spark, settings.checked(), Watch())
    assert exactness(found) == EXACT
    assert 0 < found["recovery_s"] <= found["spans"][0][2] < 10
    # No row of half of the keys can leave before their host is back, so that much they are late.
    assert found["peak_jitter_max_ms"] > 0
    assert len(found["timeline"]["rows"]) == 90

"""A pytest plugin: `df.groupBy(...).transformWithState(...)` goes to a flock, and reads of Spark's state store to its state.

Every checkpointLocation has a checkpoint of a flock. `SPARK_SUITE_MOVES` names a protocol with which keys move all the time.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame as AnyDataFrame
from pyspark.sql import DataFrameReader, GroupedData, SparkSession
from pyspark.sql.classic.dataframe import DataFrame

import godwit
import tests.spark_suite.sparks_tests  # noqa: F401  # Spark's test modules are found by that
from tests.spark_suite.deferred import Deferred, queries
from tests.spark_suite.moving import Moving

_group_by, _format = DataFrame.groupBy, DataFrameReader.format
KINDS = {"value": "ValueState", "list": "ListState", "map": "MapState"}
TIMERS = {"processingTime": "$procTimers_keyToTimestamp", "eventTime": "$eventTimers_keyToTimestamp"}
# What only Spark's own operators and its own store have. tests/spark/test_state_reader_as_spark.py has the counterparts.
NOT_OURS = {
    "test_transform_with_state_query_restarts": "reads lastProgress.stateOperators",
    "test_transform_with_value_state_metadata": "reads the change feed and the snapshots of Spark's store",
}


class Flocks:
    """The flock that is open, and the checkpoints of all that a test has had."""

    def __init__(self) -> None:
        self.paths: dict[str | None, str] = {}
        self._open: tuple[str, godwit.Flock] | None = None
        self._moving: Moving | None = None
        self._defined = 0
        self.moves = 0

    def of(self, location: str | None) -> godwit.Flock:
        path = self.paths.setdefault(location, tempfile.mkdtemp() + "/flock")
        if self._open is None or self._open[0] != path:
            self.close()
            session = SparkSession.getActiveSession()
            assert session is not None, "a test has a session"
            self._open = path, godwit.Flock(session, hosts=2, checkpoint=path)
        return self._open[1]

    def define(self, method: str, frame: AnyDataFrame, keys: Any, given: dict[str, Any]) -> AnyDataFrame:
        self.stop_moving()
        flock = self.of(queries.location if queries.defining else None)
        name = f"op{self._defined}"
        self._defined += 1
        made: AnyDataFrame = getattr(flock, method)(frame, keys, **given, name=name)
        return made

    def query_begun(self) -> None:
        self.stop_moving()
        self._defined = 0

    def query_started(self) -> None:
        protocol = os.environ.get("SPARK_SUITE_MOVES")
        if protocol and self._open is not None:
            self._moving = Moving(self._open[1], [f"op{at}" for at in range(self._defined)], protocol)

    def stop_moving(self) -> None:
        if self._moving is not None:
            self._moving.stop()
            self.moves += self._moving.moves
            self._moving = None

    def close(self) -> None:
        self.stop_moving()
        if self._open is not None:
            self._open[1].close()
            self._open = None


flocks = Flocks()


def _grouped(self: DataFrame, *columns: Any) -> GroupedData:
    grouped = _group_by(self, *columns)
    grouped._keys = list(columns[0]) if len(columns) == 1 and isinstance(columns[0], list) else list(columns)
    return grouped


def _through(method: str) -> Any:
    def call(
        self: Any,
        statefulProcessor: Any,
        outputStructType: Any,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
    ) -> Any:
        given = {
            "statefulProcessor": statefulProcessor,
            "outputStructType": outputStructType,
            "outputMode": outputMode,
            "timeMode": timeMode,
            "initialState": initialState,
            "eventTimeColumnName": eventTimeColumnName,
        }

        def define() -> AnyDataFrame:
            return flocks.define(method, self._df, self._keys, given)

        return Deferred(define) if self._df.isStreaming and not queries.defining else define()

    return call


class _StateReader:
    """`spark.read.format("statestore")` and `format("state-metadata")` on the checkpoint of a flock."""

    def __init__(self, spark: SparkSession, metadata: bool) -> None:
        self._spark, self._metadata = spark, metadata
        self._options: dict[str, Any] = {}

    def option(self, name: str, value: Any) -> _StateReader:
        self._options[name] = value
        return self

    def load(self, path: str | None = None) -> AnyDataFrame:
        checkpoint = flocks.paths[str(path or self._options.pop("path"))]
        reader = self._spark.read.format("godwit")
        if not self._metadata:
            return reader.option("operator", "op0").options(**self._options).load(checkpoint)
        rows = reader.load(checkpoint).where("operator = 'op0'").collect()
        variables = [{"stateName": row["variable"], "stateVariableType": KINDS[row["kind"]]} for row in rows]
        timers = TIMERS.get(rows[0]["timeMode"])
        variables += [] if timers is None else [{"stateName": timers, "stateVariableType": "TimerState"}]
        properties = json.dumps({"stateVariables": variables})
        return self._spark.createDataFrame([(properties,)], "operatorProperties string")


def _read(self: DataFrameReader, source: str) -> Any:
    if source in ("statestore", "state-metadata"):
        return _StateReader(self._spark, source == "state-metadata")
    return _format(self, source)


DataFrame.groupBy = DataFrame.groupby = _grouped  # type: ignore[method-assign]
GroupedData.transformWithState = _through("transformWithState")  # type: ignore[method-assign]
GroupedData.transformWithStateInPandas = _through("transformWithStateInPandas")  # type: ignore[method-assign]
DataFrameReader.format = _read  # type: ignore[method-assign]
queries.begun, queries.started = flocks.query_begun, flocks.query_started


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name in NOT_OURS:
            item.add_marker(pytest.mark.skip(reason=NOT_OURS[item.name]))


@pytest.fixture(autouse=True)
def _flocks_of_the_test() -> Iterator[None]:
    flocks.paths.clear()
    yield
    flocks.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"{flocks.moves} times all keys of a host have moved")

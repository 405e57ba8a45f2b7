"""PySpark's way to write an operator: group a DataFrame by key columns, then say what is done with each key.

`events.groupBy("car").transformWithState(...)` becomes `flock.groupBy(events, "car").transformWithState(..., name=...)`: one
line changes in a query that is ported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from godwit.runtime.processor.native import Processor
from godwit.spark.define.operator_definition import OperatorOptions
from godwit.spark.porting.spark_state import SparkState

if TYPE_CHECKING:
    from godwit.spark.flock import Flock


class GroupedFrame:
    """What `Flock.groupBy` returns. The arguments are PySpark's, and Godwit's as keywords: `name` and `OperatorOptions`."""

    def __init__(self, flock: Flock, frame: DataFrame, keys: Any) -> None:
        self._flock = flock
        self._frame = frame
        self._keys = keys

    def __repr__(self) -> str:
        return f"GroupedFrame[grouped by {self._keys!r} on {self._flock!r}]"

    def transformWithState(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str = "append",
        timeMode: str = "none",
        initialState: DataFrame | GroupedData | SparkState | None = None,
        eventTimeColumnName: str = "",
        *,
        name: str,
        **options: Unpack[OperatorOptions],
    ) -> DataFrame:
        """As `Flock.transformWithState`."""
        given = (statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName)
        return self._flock.transformWithState(self._frame, self._keys, *given, name=name, **options)

    def transformWithStateInPandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str = "append",
        timeMode: str = "none",
        initialState: DataFrame | GroupedData | SparkState | None = None,
        eventTimeColumnName: str = "",
        *,
        name: str,
        **options: Unpack[OperatorOptions],
    ) -> DataFrame:
        """As `Flock.transformWithStateInPandas`."""
        given = (statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName)
        return self._flock.transformWithStateInPandas(self._frame, self._keys, *given, name=name, **options)

    def process(
        self,
        processor: Processor,
        outputMode: str = "append",
        timeMode: str = "none",
        initialState: DataFrame | GroupedData | None = None,
        *,
        name: str,
        **options: Unpack[OperatorOptions],
    ) -> DataFrame:
        """As `Flock.process`."""
        given = (processor, outputMode, timeMode, initialState)
        return self._flock.process(self._frame, self._keys, *given, name=name, **options)

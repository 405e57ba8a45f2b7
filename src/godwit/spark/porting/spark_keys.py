"""Keys of Spark's state as keys of an operator of a flock: whether they are the same, and which of them are not.

Spark's operator for Python tells keys apart by the bytes that it stores. So it may have two states where a flock has one key
(plus and minus zero), and one state where a flock has two keys (instants that pandas shows alike): both are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as sql

from godwit.errors import CheckpointMismatch
from godwit.runtime.processor.spec import OperatorSpec
from godwit.spark.porting.pandas_instants import PandasInstants, has_instant, shown
from godwit.spark.pyspark_api.schemas import input_schema
from godwit.state import layout
from godwit.state.keys import process_zone


class SparkKeys:
    """pandas: whether the old job was one with pandas."""

    def __init__(self, spec: OperatorSpec, pandas: bool) -> None:
        self._spec = spec
        shifted = pandas and (spec.tz != "UTC" or process_zone() is None)
        self.instants = PandasInstants(spec.tz) if shifted and any(map(has_instant, spec.key_schema.types)) else None

    def named(self, frame: DataFrame, *columns: Column) -> DataFrame:
        """The key columns under the names that they have in the operator, then these columns."""
        names = self._spec.key_schema.names
        stored = cast(sql.StructType, frame.schema["key"].dataType).names
        keys = [sf.col("key").getField(was).alias(now) for was, now in zip(stored, names, strict=False)]
        was, now = input_schema(frame.select(*keys)), self._spec.key_schema
        if len(stored) != len(names) or list(map(_bare, was.types)) != list(map(_bare, now.types)):
            old_keys = layout.shown(input_schema(frame.select("key.*")))
            raise CheckpointMismatch(
                f"the state is by {old_keys} in the Spark checkpoint and by {layout.shown(now)} in the operator",
                todo="Give the operator the key columns of the old job, in the same order and with the same types",
                operator=self._spec.name,
            )
        return frame.select(*keys, *columns)

    def convert(self, column: pa.Array[Any]) -> pa.Array[Any]:
        """A key column as the flock has it."""
        return column if self.instants is None else self.instants.undone(column)

    def check(self, keys: DataFrame) -> None:
        """Raise if a key column of these does not say which key of the flock is meant."""
        if any(map(_has_fraction, self._spec.key_schema.types)):
            self._check_zeros(keys)
        if self.instants is not None:
            self._check_instants(keys, self.instants)

    def _check_zeros(self, keys: DataFrame) -> None:
        texts = keys.withColumn("__text", sf.struct(*keys.columns).cast("string"))
        by_key = texts.groupBy(*keys.columns).agg(sf.sort_array(sf.collect_set("__text")).alias("texts"))
        for row in by_key.where(sf.size("texts") > 1).select("texts").limit(1).collect():
            one, other = row["texts"][:2]
            raise CheckpointMismatch(
                f"the Spark checkpoint has one state for the key {one} and another one for {other}: a flock has one key there",
                todo="Read the state with spark.read.format('statestore'), make one state of the two, and give it to a new "
                "query as the rows of initialState",
                operator=self._spec.name,
            )

    def _check_instants(self, keys: DataFrame, instants: PandasInstants) -> None:
        def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                doubtful = {at for column in batch.columns for at in instants.doubtful(column)}
                rows = batch.take(pa.array(sorted(doubtful), pa.int64())).to_pylist()
                texts = [str(tuple(shown(value) for value in row.values())) for row in rows]
                yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["key"])

        for row in keys.distinct().mapInArrow(body, "key string").limit(1).collect():
            raise CheckpointMismatch(
                f"the key {row[0]} may be two instants in the zone {instants.zone}: with pandas Spark has one state for both",
                todo="Define the operator in a session with the time zone, and in a process with the TZ, of the old job. If it "
                "had these, the hour is one that comes twice in autumn: start the query anew, with a new checkpointLocation",
                operator=self._spec.name,
            )


def _bare(kind: Any) -> Any:
    """The type without what says that fields are never null: in Spark's state every field may be."""
    return pa.struct([(field.name, _bare(field.type)) for field in kind]) if pa.types.is_struct(kind) else kind


def _has_fraction(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_fraction(field.type) for field in kind)
    return pa.types.is_floating(kind)

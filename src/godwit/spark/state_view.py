"""Committed state as a Spark DataFrame: one partition per host, decoded where it is read."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.runtime.export import state_schema
from godwit.runtime.spec import OperatorSpec
from godwit.runtime.state_reader import StateReader
from godwit.runtime.tables import read_routing
from godwit.spark.admission import Binding, committed_batch
from godwit.spark.home import Home


def state_frame(
    spark: SparkSession,
    home: Home,
    incarnation: str,
    token: str,
    spec: OperatorSpec,
    binding: Binding | None,
    controller: str,
) -> DataFrame:
    """The state of every key as of a committed batch, the newest or, while one is being processed, the one before it."""
    batch = committed_batch(spark, binding.checkpoint) if binding else -1
    routing = read_routing(str(home.path), spec.name) or home.routing
    parts = tuple((host, frozenset(routing.groups_of(host))) for host in routing.hosts)
    reader = StateReader(spec, str(home.path), parts, batch, incarnation, token, controller=controller)
    schema = from_arrow_schema(state_schema(spec), prefer_timestamp_ntz=True)

    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = None if context is None else context.taskAttemptId()
        for positions in batches:
            for position in positions.column(0).to_numpy():
                yield from reader.read(int(position), attempt)

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(body, schema)

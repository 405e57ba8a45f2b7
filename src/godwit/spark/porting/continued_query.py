"""A query goes on with a new checkpointLocation, at the offsets and with the watermark of a query that was stopped.

Decides what the new checkpointLocation has of the old one: the query's id, the newest batches of both logs, and the logs of the
sources, but no state. Sources that only Godwit's operators have (timers) begin without an offset.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from godwit.errors import CheckpointMismatch
from godwit.spark.checkpoint.hadoop_folder import Folder
from godwit.spark.checkpoint.source_offsets import TIMER_FORMAT, StreamSource, stream_sources
from godwit.spark.porting.spark_checkpoint import OPERATOR, VOID, PlannedBatch, SparkCheckpoint

_UNIQUE_IDS = "stateUniqueIds"  # of files of Spark's own state


def continue_spark_query(frame: DataFrame, old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
    """Make the checkpointLocation `new`, with which a query on `frame` goes on where the query with `old` has ended.

    frame: what the new query writes, with the same sources in the same order as the old query. The old query must be stopped;
    its checkpointLocation is only read. A batch that it has planned and not committed is the first batch of the new query, with
    the same rows. If `new` has a query already, nothing changes, so a program may call this at each of its starts.
    """
    spark = frame.sparkSession
    target = Folder(spark, new)
    if target.exists("metadata"):
        return
    if target.names():
        raise CheckpointMismatch(
            f"{target.path} is not empty, and not the checkpointLocation of a query", todo="Give a new directory"
        )
    source = SparkCheckpoint(spark, old)
    source.check_stopped()
    draft = Folder(spark, f"{target.path.rstrip('/')}.unfinished")
    draft.delete()
    _write(source, draft, stream_sources(frame))
    target.delete()
    draft.rename(target)


def _write(source: SparkCheckpoint, draft: Folder, streams: Sequence[StreamSource]) -> None:
    committed = source.committed()
    source.check_operators(committed, "the old query", OPERATOR)
    inputs = [at for at, stream in enumerate(streams) if stream.format != TIMER_FORMAT]
    source.folder.copy_to("metadata", draft, "metadata")
    for batch in source.batches("offsets"):
        if batch >= committed - 1:  # Spark reads the newest entry and the one before
            planned = _with_timers(source.planned(batch), streams, inputs)
            draft.write(f"offsets/{batch}", planned.text())
    for batch in (committed - 1, committed):
        if source.folder.exists(f"commits/{batch}"):
            draft.write(f"commits/{batch}", _without_state(*source.commit(batch)))
    _copy_source_logs(source.folder, draft, streams)


def _with_timers(planned: PlannedBatch, streams: Sequence[StreamSource], inputs: Sequence[int]) -> PlannedBatch:
    if len(inputs) != len(planned.offsets):
        raise CheckpointMismatch(
            f"the old query has {len(planned.offsets)} sources, and the DataFrame has {len(inputs)}",
            todo="Read the same sources in the same order as the old query",
        )
    offsets = [VOID] * len(streams)
    for at, offset in zip(inputs, planned.offsets, strict=True):
        offsets[at] = offset
    return PlannedBatch(planned.metadata, tuple(offsets))


def _without_state(version: str, metadata: dict[str, Any]) -> str:
    return f"{version}\n{json.dumps({name: value for name, value in metadata.items() if name != _UNIQUE_IDS})}"


def _copy_source_logs(old: Folder, draft: Folder, streams: Sequence[StreamSource]) -> None:
    """Spark numbers the sources of a plan, each once: timers shift the numbers of the others."""
    distinct = list({stream.columns: stream for stream in streams}.values())
    numbers = [at for at, stream in enumerate(distinct) if stream.format != TIMER_FORMAT]
    draft.make("sources")
    for before, now in enumerate(numbers):
        if old.exists(f"sources/{before}"):
            old.copy_to(f"sources/{before}", draft, f"sources/{now}")

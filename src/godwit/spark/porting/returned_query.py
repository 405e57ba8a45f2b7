"""A query of plain Spark goes on at the offsets and with the watermark of a query of a flock, with the flock's state.

Spark reads `initialState` in batch 0 only, and batch 0 of a source begins at its beginning. So batch 0 of the new query is
planned here to end where the old query has ended, and runs on a frame that lets no row through: it stores state, and nothing
else, at a time before all timers. The new query cannot go on with the numbers of the old one: the versions of Spark's state are
numbers of batches, so behind batch 0 comes batch 1. Spark writes absolute paths into its state, so the new checkpointLocation
is made in its final place, and has a mark until it is whole.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Sequence
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession

from godwit.errors import CheckpointMismatch
from godwit.spark.checkpoint.hadoop_folder import Folder
from godwit.spark.checkpoint.source_offsets import TICK, StreamSource, stream_sources
from godwit.spark.porting import file_sink
from godwit.spark.porting.restoring import FIRST_BATCH_MS, FIRST_WATERMARK_MS
from godwit.spark.porting.spark_checkpoint import VOID, PlannedBatch, SparkCheckpoint
from godwit.spark.porting.state_end import state_ends

_NEXT_WATERMARK = "nextBatchWatermarkMs"
_UNFINISHED = "unfinished"  # a file in a checkpointLocation whose making was interrupted
_NUMBERS: Final = (
    "the query with the checkpointLocation %s begins with batch 1, and the query of the flock has ended with batch %d: a sink "
    "that skips the numbers of batches that it has would drop rows. Give a file sink a new path, and the same path= to "
    "continue_in_spark; let a foreachBatch that skips numbers begin anew"
)
_log: Final = logging.getLogger("godwit.porting")
OutputMode = Literal["append", "update", "complete"]


def continue_in_spark(
    frame: DataFrame,
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    outputMode: OutputMode = "append",  # as DataStreamWriter names it
    path: str | os.PathLike[str] | None = None,
) -> None:
    """Make the checkpointLocation `new`, with which a query of plain Spark goes on where the query of a flock has ended.

    frame: the new query over its input with `.where("false")`, with processor and initialState from `godwit.state_for_spark`.
    old: the checkpointLocation of the query of the flock, which must be stopped; it is only read. Batch 0 of the new query runs
    here and stores the state; the query itself then starts at batch 1. If `new` has a query already, nothing changes.

    path: where the new query writes files, if it does: a new directory. The batches of the new query are numbered from 0, and a
    sink that skips batches whose numbers it has would drop rows. So a file sink needs a new path, which has to be known here,
    and a `foreachBatch` that skips numbers has to begin anew. A warning in the log says so.
    """
    spark = frame.sparkSession
    target = Folder(spark, new)
    if target.exists(_UNFINISHED):
        target.delete()
    if target.exists("metadata"):
        return
    if target.names():
        raise CheckpointMismatch(
            f"{target.path} is not empty, and not the checkpointLocation of a query", todo="Give a new directory"
        )
    sink = None if path is None else Folder(spark, path)
    if sink is not None:
        file_sink.check_new(sink)
    source = SparkCheckpoint(spark, old)
    last = _checked_end(source, frame)
    planned, streams = source.planned(last), stream_sources(frame)
    inputs = _inputs(planned, streams)
    ended = _settled(PlannedBatch(planned.metadata, tuple(planned.offsets[at] for at in inputs)), spark)
    target.write(_UNFINISHED, "")
    target.write("metadata", json.dumps({"id": str(uuid.uuid4())}))  # another query: its batches are numbered from 0
    target.write("offsets/0", _first(ended, frame).text())
    _copy_source_logs(source.folder, target, inputs, streams)
    _store(frame, target, outputMode)
    target.write("offsets/0", ended.text())
    _commit(source, target)
    if sink is not None:
        file_sink.begin(sink)
    target.delete(_UNFINISHED)
    _log.warning(_NUMBERS, target.path, last)


def _checked_end(source: SparkCheckpoint, frame: DataFrame) -> int:
    """The newest batch of the flock's query. Raises if the query cannot go on in Spark with the state in the frame."""
    source.check_stopped()
    last = source.committed()
    source.check_operators(last, "the query of the flock")
    for end in state_ends(frame):
        end.check(source)
    return last


def _first(ended: PlannedBatch, frame: DataFrame) -> PlannedBatch:
    """The batch that stores state, at a time at which no timer is due. State that the user has made knows no such time."""
    return ended.at(FIRST_BATCH_MS if state_ends(frame) else ended.processing_ms, FIRST_WATERMARK_MS)


def _inputs(planned: PlannedBatch, streams: Sequence[StreamSource]) -> list[int]:
    """Which offsets of the old query are of sources that the new one has too: all but those of timers."""
    inputs = [at for at, offset in enumerate(planned.offsets) if not _of_timers(offset)]
    if len(inputs) > len(streams):  # a timer source that has not been asked yet has no offset
        inputs = [at for at in inputs if planned.offsets[at] != VOID]
    if len(inputs) != len(streams):
        raise CheckpointMismatch(
            f"the query of the flock has {len(inputs)} sources, and the DataFrame has {len(streams)}",
            todo="Read the same sources in the same order as the query of the flock",
        )
    return inputs


def _of_timers(offset: str) -> bool:
    try:
        parsed = json.loads(offset)
    except ValueError:
        return False
    return isinstance(parsed, dict) and list(parsed) == [TICK]


def _settled(ended: PlannedBatch, spark: SparkSession) -> PlannedBatch:
    """The batch with the settings of this session: the query of the flock may have had another state store, or none."""
    metadata = json.loads(ended.metadata)
    conf = {name: spark.conf.get(name, value) for name, value in metadata.get("conf", {}).items()}
    return PlannedBatch(json.dumps({**metadata, "conf": conf}), ended.offsets)


def _copy_source_logs(old: Folder, target: Folder, inputs: Sequence[int], streams: Sequence[StreamSource]) -> None:
    """Spark numbers the sources of a plan, each once: without timers the others have smaller numbers."""
    target.make("sources")
    named = dict(zip(inputs, (stream.columns for stream in streams), strict=True))
    before: dict[object, int] = {}
    for at in range(max(inputs, default=-1) + 1):
        before.setdefault(named.get(at, at), len(before))
    for now, columns in enumerate(dict.fromkeys(stream.columns for stream in streams)):
        if old.exists(f"sources/{before[columns]}"):
            old.copy_to(f"sources/{before[columns]}", target, f"sources/{now}")


def _store(frame: DataFrame, target: Folder, mode: OutputMode) -> None:
    """Run batch 0, which Spark finds planned and not committed."""
    writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", target.path)
    query = writer.trigger(once=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _commit(source: SparkCheckpoint, target: Folder) -> None:
    """Batch 0 is committed with the watermark that the old query has reached."""
    reached = source.commit(source.committed())[1].get(_NEXT_WATERMARK, 0)
    version, metadata = SparkCheckpoint(target.spark, target.path).commit(0)
    target.write("commits/0", f"{version}\n{json.dumps({**metadata, _NEXT_WATERMARK: reached})}")

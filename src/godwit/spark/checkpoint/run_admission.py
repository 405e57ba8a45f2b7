"""Decides whether a run of a query is admitted: it is the active run, of a supported kind, and both checkpoints fit.

A host asks when it meets a run for the first time. Spark is the authority: an application has at most one active run of a
query, so every other run is stale. The batches that Spark has planned and committed are read from Spark's own logs.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import SparkSession

from godwit.errors import CheckpointMismatch, GodwitError, StaleRun, UnsupportedQuery
from godwit.model.start import Start
from godwit.runtime.messages import Admit, RunAdmitted
from godwit.spark.checkpoint.hadoop_folder import Folder
from godwit.spark.checkpoint.source_offsets import initial_offsets, offsets_of, sources_under

_ASYNCHRONOUS = "AsyncProgressTrackingMicroBatchExecution"
_CONTINUOUS = "ContinuousExecution"
_REAL_TIME = "RealTimeTrigger"
# Of a query whose log is gone with its temporary checkpoint: no batch is done again, so all that was applied counts.
LAST: Final = sys.maxsize
_TEMPORARY = re.compile(r"temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # as Spark names it


@dataclass(frozen=True, slots=True)
class Binding:
    """The query that an operator's state belongs to."""

    query: str
    checkpoint: str

    @property
    def temporary(self) -> bool:
        """Whether the query had no checkpointLocation: Spark has made one, which no later query goes on with."""
        return _TEMPORARY.fullmatch(self.checkpoint.rstrip("/").rpartition("/")[2]) is not None


@dataclass(frozen=True, slots=True)
class Admitted:
    """What decides which runs an operator admits.

    `sources`: the columns of its sources. `merges`: its processor declares a merge. `by_key`: its input is partitioned by key.
    `real_time`: its routers hand rows on as they come. `start`: where the state ends that it has taken over from Spark.
    `by_columns`: rows are known by lane and sequence columns. `timers`: its processor may set timers.
    `compared`: its outputs are compared with the watermark of their batch.
    """

    sources: frozenset[int] = frozenset()
    merges: bool = False
    by_key: bool = False
    real_time: bool = False
    start: Start | None = None
    by_columns: bool = False
    timers: bool = False
    compared: bool = False

    @property
    def recognises(self) -> str:
        """Why rows are not recognised when Spark reads them again in other batches; empty if they are."""
        if not self.by_columns:
            return "rows are known by their place in the batch"
        if self.by_key:
            return "the input is partitioned by key, so rows are known by their place in the batch"
        if self.timers:
            return "timers fire by the batch"
        if self.compared:
            return "eventTimeColumnName: outputs may not be older than the watermark of their batch"
        return "rows of a batch are merged before they are handed on" if self.merges else ""


class RunAdmission:
    def __init__(self, spark: SparkSession, accept_gaps: bool) -> None:
        self._spark = spark
        self._accept_gaps = accept_gaps
        self.bindings: dict[str, Binding] = {}
        self.operators: dict[str, Admitted] = {}
        self.initial_runs: dict[str, str] = {}  # by operator: the job that loads its initial state

    def admit(self, request: Admit) -> RunAdmitted:
        operator, query, run, batch = request.operator, request.query, request.run, request.batch
        if batch < 0:
            self._check_initial(operator, run)
            return RunAdmitted()
        execution = active_query(self._spark, query)
        if execution is None or execution.runId().toString() != run:
            raise StaleRun(f"run {run} of query {query} is no longer active", operator=operator, batch=batch)
        self._check_kind(execution, operator)
        asynchronous = _kind(execution) == _ASYNCHRONOUS
        if asynchronous and _trigger(execution) == _REAL_TIME:
            raise UnsupportedQuery(
                "asynchronous progress tracking is not supported with the real-time trigger, which turns it on by itself",
                todo="Set asyncProgressTrackingEnabled to false, or make the session with godwit.tune(builder, real_time=True)",
                operator=operator,
            )
        self._check_recognised(request, asynchronous)
        request = self._started(request)
        self.bindings[operator] = Binding(query, execution.resolvedCheckpointRoot())
        if batch > request.last_batch + 1 and not self._accept_gaps:
            self._check_gap(execution, request)
        return RunAdmitted(asynchronous)

    def _facts(self, operator: str) -> Admitted:
        return self.operators.get(operator, Admitted())

    def _started(self, request: Admit) -> Admit:
        """The first batch on state of a Spark query: that state has the batches up to its start."""
        start = self._facts(request.operator).start
        if start is None or not request.fresh:
            return request
        if not start.goes_on(request.query, request.batch) and not self._accept_gaps:
            other = "" if request.query == start.query else f" of another query ({request.query})"
            raise CheckpointMismatch(
                f"this state was taken over from query {start.query} of Spark after its batch {start.batch}, and Spark starts "
                f"at batch {request.batch}{other}: rows would be missing or count twice",
                todo="Start the query with the checkpointLocation that godwit.continue_spark_query has made; if it is meant to "
                "read other rows, open the flock with on_gap='accept'",
                operator=request.operator,
            )
        return replace(request, last_batch=max(request.last_batch, start.batch), fresh=False)

    def _check_initial(self, operator: str, run: str) -> None:
        if run != self.initial_runs.get(operator):
            raise StaleRun("another job loads the initial state now", operator=operator)

    def running_query(self, operator: str) -> str | None:
        """The name or id of the running query that uses the operator; None if no query runs with it."""
        binding = self.bindings.get(operator)
        execution = None if binding is None else active_query(self._spark, binding.query)
        return None if binding is None or execution is None else str(execution.name() or binding.query)

    def committed(self, operator: str) -> int:
        """The newest batch in the commit log of the operator's query; -1 before the first."""
        return committed_batch(self._spark, self.bindings.get(operator))

    def active_run(self, query: str) -> str | None:
        """The run of the query that runs now in this application; None if none does."""
        execution = active_query(self._spark, query)
        return None if execution is None else str(execution.runId().toString())

    def _check_kind(self, execution: Any, operator: str) -> None:
        if _kind(execution) == _CONTINUOUS:
            raise UnsupportedQuery(
                "continuous processing has no batches to commit",
                todo="Use a processingTime or availableNow trigger",
                operator=operator,
            )
        if _trigger(execution) != _REAL_TIME:
            return
        if self._facts(operator).merges:
            raise UnsupportedQuery(
                "the processor declares a merge, which collects rows, and the real-time trigger does not let rows wait",
                todo="Use a processingTime or availableNow trigger, or declare no merge",
                operator=operator,
            )
        if not self._facts(operator).real_time:
            raise UnsupportedQuery(
                "the operator collects rows before it hands them on, and the real-time trigger does not let rows wait",
                todo="Start the session from godwit.tune(builder, real_time=True) and define the operator with real_time=True, "
                "or use a processingTime or availableNow trigger",
                operator=operator,
            )

    def _check_recognised(self, request: Admit, asynchronous: bool) -> None:
        """With asynchronous progress, rows of several batches may come again, in other batches. So they must be recognised.

        Also by a run without it that comes after one with it.
        """
        why = self._facts(request.operator).recognises
        if why and asynchronous:
            raise unrecognised(why).at(operator=request.operator)
        if why and request.lasting:
            raise CheckpointMismatch(
                "the query ran with asyncProgressTrackingEnabled, so rows of several batches may come again, and the "
                f"operator is defined in another way since: {why}",
                todo="Define it as it was. Let the query run with asyncProgressTrackingCheckpointIntervalMs=0 until it has "
                "read all rows again, then once without asyncProgressTrackingEnabled. Then change the definition",
                operator=request.operator,
            )

    def _check_gap(self, execution: Any, request: Admit) -> None:
        """Refuse a run if Spark had rows for this operator between the last batch of this state and the batch of the run."""
        first, batch = request.last_batch + 1, request.batch
        sources = sources_under(execution, self._facts(request.operator).sources)
        if first:
            before = offsets_of(execution, first - 1, sources)
        else:
            before = initial_offsets(execution, sources, Folder(self._spark, execution.resolvedCheckpointRoot()))
        for skipped in range(first, batch):
            offsets = offsets_of(execution, skipped, sources)
            if offsets is None or before is None or any(map(_advanced, offsets, before)):
                raise CheckpointMismatch(_gap(request, skipped), todo=_GAP_TODO, operator=request.operator)
            before = offsets


def _kind(execution: Any) -> str:
    return str(execution.getClass().getSimpleName())


def _trigger(execution: Any) -> str:
    return str(execution.trigger().getClass().getSimpleName())


def unrecognised(why: str) -> GodwitError:
    return UnsupportedQuery(
        "asynchronous progress tracking may cut batches in another way when they are read again, and this operator would not "
        f"recognise their rows: {why}",
        todo="Set asyncProgressTrackingEnabled to false. Or let rows be known by columns (Kafka's topic, partition and offset, "
        'or lane= and sequence=), with partitions="input", timeMode="none" and no merge',
    )


def _advanced(offset: str | None, before: str | None) -> bool:
    """Whether a source has new rows. A source that Spark has not asked yet has no offset."""
    return offset is not None and offset != before


_GAP_TODO = (
    "Restore both checkpoints from the same copy, or start both afresh; if the batches between had no rows for this operator, "
    "open the flock with on_gap='accept'"
)


def _gap(request: Admit, skipped: int) -> str:
    if request.fresh:
        return (
            f"Spark starts at batch {request.batch}, but there is no Godwit state for the batches before it: Godwit's "
            "checkpoint is missing or another one"
        )
    return (
        f"Spark goes on at batch {request.batch}, but this state ends at batch {request.last_batch} and batch {skipped} "
        "had data: Godwit's checkpoint is older than Spark's"
    )


def committed_batch(spark: SparkSession, binding: Binding | None) -> int:
    """The newest batch that Spark has committed, from its commit log; -1 before the first."""
    if binding is None:
        return -1
    folder = Folder(spark, binding.checkpoint)
    return LAST if binding.temporary and not folder.exists() else max(folder.numbers("commits"), default=-1)


def active_query(spark: SparkSession, query: str) -> Any:
    """The execution of a query that runs in this application; None if it does not."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    return session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query))

"""Which requests an instance refuses: of another query, a replaced run, a batch that is over, rows that did not replay.

Each refusal is an error that says what to do. Only `spoil` changes something: after it the batch must not be committed.
"""

from __future__ import annotations

from typing import Any

from godwit.errors import BatchIncomplete, CheckpointMismatch, InvariantBroken, NotReplayable, StaleBatch, StaleRun
from godwit.model.progress import BatchRef, Verdict
from godwit.runtime.durable.changelog_parts import mark_part
from godwit.runtime.durable.durable_changes import DurableChanges
from godwit.runtime.durable.memory import Memory


class BatchChecks:
    def __init__(self, memory: Memory, durable: DurableChanges) -> None:
        self._memory = memory
        self._durable = durable

    def check(self, verdict: Verdict, request: BatchRef, lane: str) -> None:
        """Raise unless this batch of this run may be opened. `verdict`: of the instance's progress about the request."""
        progress = self._memory.progress
        where: dict[str, Any] = {"operator": self._memory.spec.name, "batch": request.batch, "lane": lane}
        match verdict:
            case Verdict.OTHER_QUERY:
                raise CheckpointMismatch(
                    f"this state belongs to query {progress.query}, not to query {request.query}: Spark's checkpoint is "
                    "missing or another one",
                    todo="Start the query with the checkpointLocation it had, or use a fresh checkpoint directory for both. If "
                    "it had none, define the operator again: its state ended with the query. For a second query beside the "
                    "first, define an operator with another name",
                    **where,
                )
            case Verdict.STALE_RUN:
                raise StaleRun(f"run {request.run} was replaced by run {progress.run}", **where)
            case Verdict.STALE_BATCH:
                raise StaleBatch(f"batch {progress.batch} has begun, so this one is committed", **where)
            case Verdict.UNKNOWN_RUN:
                raise InvariantBroken("a run was admitted and is still unknown", **where)
            case Verdict.SAME | Verdict.NEXT | Verdict.SKIPPED:
                return

    def check_current(self, request: BatchRef, lane: str) -> None:
        """Rows and the end of a lane must belong to the batch in progress."""
        verdict, spoiled = self._memory.progress.judge(request), self._memory.batch.spoiled
        if verdict is not Verdict.SAME:
            self.check(verdict, request, lane)
            raise InvariantBroken("rows came before their batch was opened", operator=self._memory.spec.name, lane=lane)
        if spoiled:
            raise NotReplayable(
                f"rows of this batch did not replay, so it cannot be completed in this run: {spoiled}",
                todo="Start the query again, and let the input give the rows as they were"
                if self._memory.progress.lasting
                else "Start the query again: the batch is then reverted first, and may have other partitions",
                operator=self._memory.spec.name,
                batch=request.batch,
                lane=lane,
            )

    def check_not_older(self, request: BatchRef) -> None:
        """A run that is new here must not begin before the batch in progress. If rows outlast their batch: before a commit."""
        progress = self._memory.progress
        batch = progress.batch if progress.committed is None else progress.committed
        if request.batch < batch + progress.lasting:
            raise CheckpointMismatch(
                f"Spark starts again at batch {request.batch}, but this state already holds batch {batch}: "
                "Spark's checkpoint is older than Godwit's",
                todo="Restore both checkpoints from the same copy",
                operator=self._memory.spec.name,
            )

    def check_complete(self, request: BatchRef) -> None:
        """A batch begins, so Spark has committed the batch before: raise if that batch is incomplete here."""
        why = self._memory.incomplete
        if why and not self._memory.spec.ephemeral:
            raise BatchIncomplete(
                f"Spark has committed batch {self._memory.progress.batch}, but {why}",
                todo="Let foreachBatch raise the errors of its batch, and evaluate the whole batch. Restore both checkpoints "
                "from a copy made before that batch; or start the query again with on_gap='accept', without that batch",
                operator=self._memory.spec.name,
                batch=request.batch,
            )

    def lost_batch(self, why: str, error: CheckpointMismatch) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"Spark has committed batch {self._memory.progress.batch}, but {why}. So this is the state of the batch before",
            todo=error.todo,
            operator=self._memory.spec.name,
        )

    def spoil(self, error: NotReplayable) -> NotReplayable:
        """Record that this batch must not be committed in this run of the query: nothing more of it is applied."""
        batch = self._memory.batch
        error.at(operator=self._memory.spec.name, batch=batch.progress.batch)
        if not batch.spoiled:
            batch.spoiled = error.message
            self._durable.write([mark_part(self._memory)])
        return error


def partition_changed(lane: str, how: str) -> NotReplayable:
    return NotReplayable(
        f"this partition of the batch {how}, so replayed rows cannot be recognised",
        todo="Start the query again: the batch is then reverted first. Use a source that divides a batch into "
        "the same partitions whenever it is read, or name lane and sequence columns",
        lane=lane,
    )

"""Which batch of which run an instance has reached, and what a request for another batch or run means.

These comparisons are the fence of exactly-once: a request is compared with the progress of the instance, which gives a verdict.
The caller acts on the verdict. Nothing here talks to Spark, so the caller must find out whether an unknown run is really the
newest (`Verdict.UNKNOWN_RUN`).

If Spark tracks progress asynchronously, its log names only some of the batches. Then the next batch does not prove that the
batch before is committed, and a later run may read rows of several batches again, in batches whose numbers were used before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

FENCED_RUNS_MAX = 16  # tasks of still older runs have ended long ago


@dataclass(frozen=True, slots=True)
class BatchRef:
    """One micro-batch as a Spark task sees it: query id, run id and batch id."""

    query: str
    run: str
    batch: int


class Verdict(Enum):
    SAME = "the batch in progress"
    NEXT = "the next batch: the batch in progress is committed"
    SKIPPED = "a later batch: the batches between had no rows for this operator"
    UNKNOWN_RUN = "a run not seen before: the newest, or one that has been replaced"
    STALE_BATCH = "a batch that is committed already"
    STALE_RUN = "a run that a newer run has replaced"
    OTHER_QUERY = "another query than the one that this state belongs to"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an instance has come. `batch` is -1 and `query` is None before the first batch.

    `attempt` counts how often a later run of the query has begun the batch in progress again on this instance.

    `asynchronous`: Spark tracks the progress of this run asynchronously. `committed`: None if the next batch proves that the
    batch before is committed; if not, the newest batch that Spark's log is known to name. Then rows outlast their batch in the
    ledger, and no batch is reverted. `reading`: the batch of this run that is in progress, if an earlier run has come further:
    `batch` never goes back.
    """

    query: str | None = None
    run: str | None = None
    batch: int = -1
    fenced: tuple[str, ...] = ()
    attempt: int = 0
    asynchronous: bool = False
    committed: int | None = None
    reading: int | None = None

    @property
    def lasting(self) -> bool:
        """Whether rows outlast their batch in the ledger, because later runs may read rows of several batches again."""
        return self.committed is not None

    @property
    def current(self) -> int:
        """The batch of the present run that is in progress."""
        return self.batch if self.reading is None else self.reading

    def judge(self, request: BatchRef) -> Verdict:
        if self.query is not None and request.query != self.query:
            return Verdict.OTHER_QUERY
        if request.run in self.fenced:
            return Verdict.STALE_RUN
        if request.run != self.run:
            return Verdict.UNKNOWN_RUN
        if request.batch == self.current:
            return Verdict.SAME
        if request.batch < self.current:
            return Verdict.STALE_BATCH
        return Verdict.NEXT if request.batch == self.current + 1 else Verdict.SKIPPED

    def admit(self, request: BatchRef, asynchronous: bool = False, drained: bool = False) -> Progress:
        """Go on with a run that is known to be the newest; the run before it is fenced from now on.

        `asynchronous`: Spark tracks the progress of the run asynchronously. `drained`: no row outlasts its batch any more.
        """
        fenced = self.fenced if self.run is None else (*self.fenced, self.run)
        after = replace(self, query=request.query, run=request.run, fenced=fenced[-FENCED_RUNS_MAX:])
        after = replace(after, asynchronous=asynchronous)
        if not self.lasting:
            known = max(-1, min(request.batch, self.batch) - 1)  # the batch in progress may have to come again
            return replace(after, committed=known) if asynchronous else after
        if drained and not asynchronous and self.reading is None and request.batch == self.batch + 1:
            return replace(after, committed=None)
        return after._before(request.batch)

    def _before(self, batch: int) -> Progress:
        """Right before this batch of the run."""
        return replace(self, reading=batch - 1 if batch <= self.batch else None)

    def advance(self, batch: int) -> Progress:
        reading = batch if batch < self.batch else None
        return replace(self, batch=max(batch, self.batch), reading=reading, attempt=0)

    def follow(self, other: Progress) -> Progress:
        """Take up the later run of another instance. Rows outlast their batch, so nothing is reverted."""
        reading = other.current if other.current < self.batch else None
        after = self.fence(*other.fenced)
        return replace(after, query=other.query, run=other.run, asynchronous=other.asynchronous, reading=reading)

    def outlasting(self, other: Progress) -> Progress:
        """Rows of another instance, which outlast their batch, come here: from now on the rows here do, too."""
        return self if self.lasting or not other.lasting else replace(self, committed=other.committed)

    def joined(self, before: Progress, other: Progress) -> Progress:
        """The progress of an instance that has begun the batch of another one. `before`: its progress until then."""
        current = other.current if before.run != other.run else max(before.current, other.current)
        reading = current if current < self.batch else None
        return replace(self.outlasting(other), asynchronous=other.asynchronous, reading=reading)

    def know_committed(self, batch: int) -> Progress:
        """Spark's log names this batch."""
        return self if self.committed is None else replace(self, committed=max(batch, self.committed))

    def again(self) -> Progress:
        """Begin the batch in progress again: the rows that were applied of it are reverted."""
        return replace(self, attempt=self.attempt + 1)

    def initialised_by(self, run: str, fenced: tuple[str, ...] = ()) -> Progress:
        """A job loads initial state before the first batch: initial state that an earlier job has loaded is reverted.

        `fenced`: earlier jobs that another instance knows.
        """
        earlier = self.fenced if self.run is None else (*self.fenced, self.run)
        return replace(self.again(), run=run).fence(*earlier, *fenced)

    def fence(self, *runs: str) -> Progress:
        """Refuse these runs from now on: a later run has replaced them."""
        fenced = dict.fromkeys((*self.fenced, *runs))
        return replace(self, fenced=tuple(fenced)[-FENCED_RUNS_MAX:])

    def same_attempt(self, other: Progress) -> bool:
        """Whether another instance is in the same batch of the same run, so that rows it has applied count here too."""
        return self.batch == other.batch and self.run == other.run

    def behind(self, other: Progress) -> bool:
        """Whether another instance has begun this batch in a later run, and this instance has not.

        If rows outlast their batch, a later run may have begun any batch.
        """
        later = self.run in other.fenced or (self.run is None and other.run is not None)
        return later and (self.batch == other.batch or self.lasting)

    def unrelated(self, other: Progress) -> bool:
        """Whether another instance is in the same batch of another run, and neither instance knows which run is later.

        If rows outlast their batch, this does not matter: whichever run reads a row, it is known.
        """
        known = self.same_attempt(other) or self.behind(other) or other.behind(self)
        return self.batch == other.batch and not known and not (self.lasting or other.lasting)

    def to_dict(self) -> dict[str, Any]:
        """Without the fields that have their default if progress is not asynchronous: as earlier versions wrote it."""
        fenced = list(self.fenced)
        known = {"query": self.query, "run": self.run, "batch": self.batch, "fenced": fenced, "attempt": self.attempt}
        known |= {"asynchronous": True} if self.asynchronous else {}
        known |= {} if self.committed is None else {"committed": self.committed}
        return known | ({} if self.reading is None else {"reading": self.reading})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Progress:
        return cls(
            data["query"],
            data["run"],
            data["batch"],
            tuple(data["fenced"]),
            data.get("attempt", 0),
            data.get("asynchronous", False),
            data.get("committed"),
            data.get("reading"),
        )

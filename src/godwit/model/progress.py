"""Which batch of which run an instance has reached, and what a request for another batch or run means.

These comparisons are the fence of exactly-once: a request is compared with the progress of the instance, which gives a verdict.
The caller acts on the verdict. Nothing here talks to Spark, so the caller must find out whether an unknown run is really the
newest (`Verdict.UNKNOWN_RUN`).
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
    """

    query: str | None = None
    run: str | None = None
    batch: int = -1
    fenced: tuple[str, ...] = ()
    attempt: int = 0

    def judge(self, request: BatchRef) -> Verdict:
        if self.query is not None and request.query != self.query:
            return Verdict.OTHER_QUERY
        if request.run in self.fenced:
            return Verdict.STALE_RUN
        if request.run != self.run:
            return Verdict.UNKNOWN_RUN
        if request.batch == self.batch:
            return Verdict.SAME
        if request.batch < self.batch:
            return Verdict.STALE_BATCH
        return Verdict.NEXT if request.batch == self.batch + 1 else Verdict.SKIPPED

    def admit(self, request: BatchRef) -> Progress:
        """Go on with a run that is known to be the newest; the run before it is fenced from now on."""
        fenced = self.fenced if self.run is None else (*self.fenced, self.run)
        return replace(self, query=request.query, run=request.run, fenced=fenced[-FENCED_RUNS_MAX:])

    def advance(self, batch: int) -> Progress:
        return replace(self, batch=batch, attempt=0)

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
        """Whether another instance has begun this batch in a later run, and this instance has not."""
        later = self.run in other.fenced or (self.run is None and other.run is not None)
        return self.batch == other.batch and later

    def unrelated(self, other: Progress) -> bool:
        """Whether another instance is in the same batch of another run, and neither instance knows which run is later."""
        known = self.same_attempt(other) or self.behind(other) or other.behind(self)
        return self.batch == other.batch and not known

    def to_dict(self) -> dict[str, Any]:
        fenced = list(self.fenced)
        return {"query": self.query, "run": self.run, "batch": self.batch, "fenced": fenced, "attempt": self.attempt}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Progress:
        return cls(data["query"], data["run"], data["batch"], tuple(data["fenced"]), data.get("attempt", 0))

"""Which batch of which run an instance has reached, and what a request for another one means.

This is the fence of exactly-once: a request is compared with what the instance knows, and the answer is one of a few
verdicts. Whoever asks acts on the verdict; nothing here talks to Spark, so whether an unknown run is really the newest
is asked elsewhere (`Verdict.UNKNOWN_RUN`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

FENCED_RUNS_MAX = 16  # zombies of older runs than these have long lost their Spark tasks


@dataclass(frozen=True, slots=True)
class BatchRef:
    """One micro-batch as a Spark task sees it: query id, run id and batch id."""

    query: str
    run: str
    batch: int


class Verdict(Enum):
    SAME = "the batch in progress"
    NEXT = "the batch after it: the one before is committed"
    SKIPPED = "a later batch: those between had nothing for this operator"
    UNKNOWN_RUN = "a run not seen before: newer, or a zombie"
    STALE_BATCH = "a batch that is committed already"
    STALE_RUN = "a run that a newer one has replaced"
    OTHER_QUERY = "another query than the one this state belongs to"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an instance has come. `batch` is -1 and `query` is None before the first batch.

    `attempt` counts how often the batch in progress was begun anew here, by a later run of the query.
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
        """Take up a run known to be the newest; the one before it is fenced from now on."""
        fenced = self.fenced if self.run is None else (*self.fenced, self.run)
        return replace(self, query=request.query, run=request.run, fenced=fenced[-FENCED_RUNS_MAX:])

    def advance(self, batch: int) -> Progress:
        return replace(self, batch=batch, attempt=0)

    def again(self) -> Progress:
        """The batch in progress is begun anew: what was applied of it is reverted."""
        return replace(self, attempt=self.attempt + 1)

    def initialised_by(self, run: str) -> Progress:
        """A job brings initial state, before the first batch: what another one has brought counts no more."""
        fenced = self.fenced if self.run is None else (*self.fenced, self.run)
        return replace(self.again(), run=run, fenced=fenced[-FENCED_RUNS_MAX:])

    def same_attempt(self, other: Progress) -> bool:
        """Whether another instance is in the same batch of the same run, so that what it has applied counts here too."""
        return self.batch == other.batch and self.run == other.run

    def behind(self, other: Progress) -> bool:
        """Whether another instance has begun this batch anew, in a later run, and this one has not."""
        return self.batch == other.batch and self.run in other.fenced

    def to_dict(self) -> dict[str, Any]:
        told = {"query": self.query, "run": self.run, "batch": self.batch, "fenced": list(self.fenced)}
        return told | {"attempt": self.attempt}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Progress:
        return cls(data["query"], data["run"], data["batch"], tuple(data["fenced"]), data.get("attempt", 0))

"""A peer's outputs turned into the figures that our own runs give, by the same functions. Pure: arrays in, figures out.

A peer that repeats work repeats its outputs, so a row waits for the first arrival of its answer. Later arrivals are counted
apart, and so is what rows would have suffered if they had waited for the last arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from benchmarks.peers.peer_settings import PeerSettings
from benchmarks.running.measures import counted
from benchmarks.running.timeline import timeline
from godwit.testing.latency import Departures, Numbers, Steady, disruption_ms, drift_ms, interruption, peak_p99_ms
from godwit.workload import Workload
from godwit.workload.numbered_rows import keys_of, rows_batch

SHOWN_BEFORE_S: Final = 5.0
BEHIND_GROWTH: Final = 0.1  # of the steady part; batches of up to a second come and go within it
BALLAST_CHUNK_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """What came out, in the order in which it came: a key, its count and when it arrived."""

    keys: Numbers
    counts: Numbers
    left_us: Numbers

    def __len__(self) -> int:
        return len(self.keys)

    def at(self, where: Any) -> Outputs:
        return Outputs(self.keys[where], self.counts[where], self.left_us[where])

    def of_load(self) -> Outputs:
        """Without those that only say that a key's state is filled."""
        return self.at(self.counts > 0)


@dataclass(frozen=True, slots=True)
class Answers:
    """The outputs as answers to rows: one for each row, first and last; and how many outputs came again.

    `last` is None where an output answers several rows: done again, a batch may hold others.
    """

    first: Outputs
    last: Outputs | None
    re_emitted: int


class Load:
    """The rows that were sent: their keys, and when each was due."""

    def __init__(self, settings: PeerSettings, start_ms: int) -> None:
        self.start_s = start_ms / 1e3
        self._rate = settings.rate
        drawn = keys_of(workload_of(settings), np.arange(settings.rows, dtype=np.int64))
        self.by_key: Numbers = np.bincount(drawn, minlength=settings.keys).astype(np.int64)
        self._numbers = np.argsort(drawn, kind="stable")  # of all rows, by key and then in order
        self._first_of_key = np.cumsum(self.by_key) - self.by_key

    @property
    def rows(self) -> int:
        return len(self._numbers)

    def departures(self, answers: Outputs) -> Departures:
        """Answers as rows that left; those that no row can have are left out here, and counted by `counted`."""
        real = answers.at(answers.counts <= self.by_key[answers.keys])
        numbers = self._numbers[self._first_of_key[real.keys] + real.counts - 1]
        due_s = self.start_s + (numbers * 1_000_000 // self._rate) / 1e6
        return Departures.of(real.left_us / 1e6, due_s)

    def behind_s(self, answered: int, now_s: float) -> float:
        """How many seconds of load are due and not answered."""
        due = min(self.rows, int((now_s - self.start_s) * self._rate))
        return (due - answered) / self._rate


def workload_of(settings: PeerSettings) -> Workload:
    return Workload(
        rows_per_second=settings.rate,
        keys=settings.keys,
        skew=settings.skew,
        payload_bytes=settings.state_bytes,
        rows=settings.rows,
        seed=settings.seed,
    )


def ballasts(settings: PeerSettings) -> Iterator[tuple[int, bytes]]:
    """What fills each key's state: the payload of the row of the same number."""
    step = max(1, BALLAST_CHUNK_BYTES // (settings.state_bytes or 1))
    for first in range(0, settings.keys, step):
        keys = np.arange(first, min(first + step, settings.keys), dtype=np.int64)
        payloads = rows_batch(workload_of(settings), keys, keys, 0).column("payload")
        yield from zip(keys.tolist(), (payload.as_py() or b"" for payload in payloads), strict=True)


# -- outputs as answers ----------------------------------------------------------------------------------------------


def row_by_row(outputs: Outputs) -> Answers:
    """Where every row has an output of its own."""
    word = outputs.keys * (int(outputs.counts.max(initial=0)) + 1) + outputs.counts
    first = np.unique(word, return_index=True)[1]
    last = len(word) - 1 - np.unique(word[::-1], return_index=True)[1]
    return Answers(outputs.at(np.sort(first)), outputs.at(np.sort(last)), len(outputs) - len(first))


def batch_by_batch(outputs: Outputs) -> Answers:
    """Where a batch has one output for each key in it: a count answers all rows of its key since the greatest before it."""
    span = int(outputs.counts.max(initial=0)) + 1
    order = np.argsort(outputs.keys, kind="stable")
    keys, counts = outputs.keys[order], outputs.counts[order]
    greatest = np.maximum.accumulate(keys * span + counts)
    before = np.concatenate([np.zeros(1, np.int64), greatest[:-1]]) if len(keys) else greatest
    before = np.maximum(before - keys * span, 0)  # of the same key; 0 where the key begins
    fresh = np.maximum(counts - before, 0)
    rank = np.arange(fresh.sum()) - np.repeat(np.cumsum(fresh) - fresh, fresh)
    at = np.repeat(order, fresh)
    answers = Outputs(outputs.keys[at], np.repeat(before, fresh) + rank + 1, outputs.left_us[at])
    by_arrival = answers.at(np.argsort(at, kind="stable"))
    return Answers(by_arrival, None, int((fresh == 0).sum()))


# -- the line --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moments:
    """When the steady part began, when another parallelism was asked for, and when it served (None: never asked)."""

    steady_s: float
    request_s: float
    served_s: float | None = None


def keeps_up(load: Load, answers: Outputs, moments: Moments) -> bool:
    """Whether what is due and not answered stayed as it was over the steady part, give or take a batch."""
    answered = [int((answers.left_us < at_s * 1e6).sum()) for at_s in (moments.steady_s, moments.request_s)]
    before_s = load.behind_s(answered[0], moments.steady_s)
    after_s = load.behind_s(answered[1], moments.request_s)
    return after_s - before_s <= BEHIND_GROWTH * (moments.request_s - moments.steady_s)


def steady_figures(before: Departures, steady_from_s: float) -> dict[str, Any]:
    """As `migration` gives them; all None where no row left in the steady part.

    Beside them, what counts as disruption while nothing changes: checkpoints delay rows too, and go on doing so.
    """
    names = (*Steady.__slots__, "drift_ms", "peak_jitter_p99_ms", "disruption_ms")
    if not len(before):
        return {f"steady_{name}": None for name in names}
    steady = Steady.of(before)
    more = {
        "drift_ms": drift_ms(before),
        "peak_jitter_p99_ms": peak_p99_ms(before, steady_from_s) - steady.mean_ms,
        "disruption_ms": disruption_ms(before, steady.limit_ms, steady_from_s),
    }
    return {f"steady_{name}": round(value, 2) for name, value in (asdict(steady) | more).items()}


def not_sustained(settings: PeerSettings, load: Load, answers: Answers, moments: Moments) -> dict[str, Any]:
    """The rate is more than the peer carries: it was not asked to reconfigure, which would say nothing."""
    before = load.departures(answers.first).between(moments.steady_s, moments.request_s)
    asked = ("disruption_ms", "peak_jitter_p99_ms", "peak_jitter_max_ms", "stabilise_s", "reconfiguration_s")
    unknown = ("lost", "duplicated", "out_of_order", "re_emitted_rows", "wrong_state", "timeline")
    return {
        **asdict(settings),
        "rate_rows_per_s": settings.rate,
        "sustained": False,
        **steady_figures(before, moments.steady_s),
        **dict.fromkeys((*asked, *unknown)),
        "rows": settings.rows,
    }


def figures(settings: PeerSettings, load: Load, answers: Answers, moments: Moments, wrong_state: int) -> dict[str, Any]:
    assert moments.served_s is not None, "only a run that was asked to reconfigure has these figures"
    request_s = moments.request_s
    first = load.departures(answers.first)
    before = first.between(moments.steady_s, request_s)
    steady = Steady.of(before)
    nothing = Departures(first.left_s[:0], first.latency_ms[:0])
    last = nothing if answers.last is None else load.departures(answers.last)
    again = interruption(last.between(request_s), steady, request_s)
    return {
        **asdict(settings),
        "rate_rows_per_s": settings.rate,
        "sustained": True,
        **steady_figures(before, moments.steady_s),
        **interruption(first.between(request_s), steady, request_s),
        **{f"last_arrival_{name}": value for name, value in again.items()},
        "reconfiguration_s": round(moments.served_s - request_s, 3),
        "load_outlasted_it": moments.served_s < load.start_s + settings.rows / settings.rate,
        "rows": settings.rows,
        **counted(answers.first.keys, answers.first.counts, load.by_key),
        "re_emitted_rows": answers.re_emitted,
        "wrong_state": wrong_state,
        "timeline": timeline(first, request_s, -SHOWN_BEFORE_S, settings.watched_s),
    }

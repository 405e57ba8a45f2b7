"""What the simulated queries compute, drawn from a seed: counts or sums, with or without timers, by event or processing time.

Every output says what its row or timer saw and which timer it set, so that a checker can compute the next output by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

import godwit
from godwit.model.watermark import Policy
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.spec import Operator, OperatorSpec, TimeMode

INPUT = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("at", pa.timestamp("ms"))])
NONE = -1  # instead of the time of a timer
MODES: tuple[TimeMode, ...] = ("none", "eventTime", "eventTime", "processingTime")
BATCH_MS = 1_000  # of event time, from one batch to the next
EVENT_TIMER_MS = 300
PROCESSING_TIMERS_MS = np.array([0, 0, 40, 400])
AGAIN_MS = 500
MERGING = 0.3  # of the operators
MERGE = {"n": "sum", "at": "max"}
# So small that a few rows make a block, and that two rows of a key are merged.
BLOCK_ROWS = 6
HOT_ROWS_MIN = 2


class Bells(godwit.Processor):
    """A row counts itself and may set a timer. A timer counts itself, and may set another one.

    With a merge a row counts as much as its number says, so that a merged row counts as much as its rows.
    """

    state = {"count": pa.int64(), "rings": pa.int64()}
    output_schema = pa.schema(
        [*INPUT, ("count", pa.int64()), ("rings", pa.int64()), ("sets_ms", pa.int64()), ("fires_ms", pa.int64())]
    )

    def __init__(self, mode: TimeMode, merges: bool = False) -> None:
        self._mode = mode
        if merges:
            self.merge = MERGE

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        count = state["count"][rows.codes] + _sums(rows, self._weights(rows))
        rings = state["rings"][rows.codes]
        self.initialise(rows, state, times)
        sets_ms = self._timers(rows, times)
        _set(state, rows.codes, sets_ms)
        return self.emit(rows, count=count, rings=rings, sets_ms=sets_ms, fires_ms=np.full(len(rows), NONE))

    def initialise(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> None:
        """Initial rows count as others do, and set no timers."""
        state["count"] += np.bincount(rows.codes, self._weights(rows), len(rows.keys)).astype(np.int64)

    def _weights(self, rows: godwit.Rows) -> Any:
        return rows.batch.column("n").to_numpy() if self.merge else np.ones(len(rows), np.int64)

    def _timers(self, rows: godwit.Rows, times: godwit.Times) -> Any:
        n = rows.batch.column("n").to_numpy()
        match self._mode:
            case "none":
                return np.full(len(rows), NONE)
            case "eventTime":
                at_ms = rows.batch.column("at").cast(pa.int64()).to_numpy()
                return np.where(n % 3 == 2, NONE, at_ms + n % 5 * EVENT_TIMER_MS)
            case "processingTime":
                return np.where(n % 3 == 2, NONE, times.processing_ms + PROCESSING_TIMERS_MS[n % 4])

    def on_timer(self, timers: Any, state: Any, times: godwit.Times) -> godwit.Outputs:
        count = state["count"][timers.codes]
        rings = state["rings"][timers.codes] + timers.rank + 1
        state["rings"] += timers.counts
        at_ms = timers.expiry_ms
        sets_ms = np.where(at_ms % 4 == 1, at_ms + AGAIN_MS, NONE)
        _set(state, timers.codes, sets_ms)
        at = pa.array(at_ms).cast(INPUT.field("at").type)
        return self.emit(timers, n=at_ms, at=at, count=count, rings=rings, sets_ms=sets_ms, fires_ms=at_ms)


def _sums(rows: godwit.Rows, weights: Any) -> Any:
    """For each row, the sum of the weights of its key up to this row."""
    sums = np.empty(len(rows), np.int64)
    for begin, end in pairwise(rows.bounds.tolist()):
        of_key = rows.order[begin:end]
        sums[of_key] = np.cumsum(weights[of_key])
    return sums


def _set(state: Any, codes: Any, sets_ms: Any) -> None:
    where = sets_ms != NONE
    state.set_timer(codes[where], sets_ms[where])


@dataclass(frozen=True, slots=True)
class Kind:
    """What distinguishes one operator of a load from another."""

    mode: TimeMode = "none"
    delay_ms: int = 0
    policy: Policy = "max"
    merges: bool = False  # routers merge rows of a hot key
    partitions: int = 0  # lanes are made by key, and so many


def draw_kind(dice: Random) -> Kind:
    mode, delay_ms, policy = dice.choice(MODES), dice.choice((0, 200, BATCH_MS)), dice.choice(("max", "query", "min"))
    return Kind(mode, delay_ms, policy, dice.random() < MERGING)


def operator_of(name: str, kind: Kind) -> Operator:
    by_event = kind.mode == "eventTime"
    adapter = NativeAdapter(Bells(kind.mode, kind.merges), INPUT, ["key"])
    spec = OperatorSpec(
        name,
        Bells.__qualname__,
        "native",
        pa.schema([INPUT.field("key")]),
        adapter.output_schema,
        adapter.variables,
        time_mode=kind.mode,
        event_time="at" if by_event else None,
        delay_ms=kind.delay_ms,
        watermark_policy=kind.policy,
        merge=adapter.merge,
        partitions=kind.partitions,
    )
    return Operator(spec, cloudpickle.dumps(adapter))

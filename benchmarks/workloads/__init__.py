"""The workloads of the benchmarks, by the name that settings give them. What each computes is in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.running.settings import COUNT_WINDOW, Settings
from benchmarks.workloads.averages import Averages
from benchmarks.workloads.computation import LANES, NAME, Computation
from benchmarks.workloads.counts import Counts
from benchmarks.workloads.windows import Windows
from benchmarks.workloads.words import WordCounts
from godwit.workload import KEY_COUNT, SPEEDS, WORDS

__all__ = ["COMPUTATIONS", "LANES", "NAME", "Computation", "computation"]

COMPUTATIONS: Final[Mapping[str, type[Computation]]] = {
    KEY_COUNT: Counts,
    SPEEDS: Averages,
    COUNT_WINDOW: Windows,
    WORDS: WordCounts,
}


def computation(settings: Settings) -> Computation:
    return COMPUTATIONS[settings.workload](settings)

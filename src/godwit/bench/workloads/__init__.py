"""The workloads of the benchmarks, by the name that settings give them. What each computes is in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from godwit.bench.settings import COUNT_WINDOW, Settings
from godwit.bench.workloads.averages import Averages
from godwit.bench.workloads.computation import LANES, NAME, Computation
from godwit.bench.workloads.counts import Counts
from godwit.bench.workloads.windows import Windows
from godwit.bench.workloads.words import WordCounts
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

"""What measuring costs: gauges and hot keys counted on every host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.experiments.pairs import compared
from benchmarks.inside.switched_off import without_measures
from benchmarks.running.settings import Settings
from benchmarks.running.watch import Watch


def measuring(settings: Settings, runs: int, batches: int, batch_rows: int, watch: Watch) -> Iterator[dict[str, Any]]:
    return compared("measuring", "measuring", without_measures, settings, runs, batches, batch_rows, watch)

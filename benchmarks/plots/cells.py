"""A figure over runs as a cell of a table; a dash where a system has no such figure."""

from __future__ import annotations

from typing import Final

from benchmarks.plots.blocks import Cell
from benchmarks.plots.evaluation import Spread
from benchmarks.plots.figures import median_and_range

NONE: Final = "–"


def spread_cell(value: Spread | None, name: str, wrong: bool = False) -> Cell:
    if value is None:
        return Cell(NONE, wrong)
    middle, around = median_and_range(value, name)
    return Cell(middle, wrong, around)

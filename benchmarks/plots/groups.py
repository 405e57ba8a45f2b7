"""Runs of a panel, put together by what is compared in it: ways, or orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.plots.charts import Look
from benchmarks.plots.evaluation import Panel, Run

ORDERS: Final = ("hash", "arrival", "size", "sudden", "fluid", "batched", "hot-first", "by-backlog")


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    look: Look
    runs: Sequence[Run]

    @property
    def wrong(self) -> bool:
        return self.look.wrong

    def at(self, point: float) -> list[Run]:
        return [run for run in self.runs if run.at == point]


def grouped(panel: Panel, by: str) -> list[Group]:
    if by == "way":
        return [Group(Look.of(way, _wrong(panel.of(way))), panel.of(way)) for way in panel.ways]
    names = sorted({run.text("order") for run in panel.runs}, key=_order_rank)
    return [_by_order(name, [run for run in panel.runs if run.text("order") == name]) for name in names]


def _by_order(name: str, runs: Sequence[Run]) -> Group:
    rank = _order_rank(name)[0]
    return Group(Look(name or "no order", f"o{rank}", rank, _wrong(runs)), runs)


def _order_rank(name: str) -> tuple[int, str]:
    return (ORDERS.index(name) if name in ORDERS else len(ORDERS), name)


def _wrong(runs: Sequence[Run]) -> bool:
    return any(run.fault for run in runs)

"""Ours beside what is published: as parts of what a restart costs, because machines differ and shapes should not."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.plots import charts, published
from benchmarks.plots.blocks import Block, Cell, Part, Pictures, Table, Words
from benchmarks.plots.cells import NONE, spread_cell
from benchmarks.plots.charts import Beside, Look
from benchmarks.plots.evaluation import Panel, Way, over
from benchmarks.plots.figures import MISSING, figure, number

FIGURES = tuple(reversed(published.FIGURES))


def compared(panel: Panel) -> Iterator[Block]:
    """Only the ways that the paper has too; nothing if none of them was measured."""
    paper = published.comparison()
    ways = [Way("godwit", row.way) for row in paper.rows if panel.of(Way("godwit", row.way))]
    if not ways:
        return
    named = [panel.workload] if panel.workload in paper.workloads else paper.workloads
    about = f"{paper.paper}'s {named[0]}" if len(named) == 1 else f"{paper.paper}, over its {len(named)} workloads"
    yield Words(f"Ours beside published ({about}), as parts of what a {paper.baseline} costs:")
    drawn = [charts.beside(figure(name).heading, [_beside(panel, way, name) for way in ways]) for name in FIGURES]
    yield Pictures(drawn, caption="Coloured: ours. Grey, or hollow where it is one number: published.")
    head = ["protocol"]
    for name in FIGURES:
        heading = figure(name).heading
        head += [
            f"{figure(name).headed}",
            f"{heading}, of a restart",
            f"{heading}, published, ms",
            "of a restart there",
        ]
    rows = [[Cell(way.label), *(cell for name in FIGURES for cell in _cells(panel, way, name))] for way in ways]
    yield Table(head, rows)


def _cells(panel: Panel, way: Way, name: str) -> Iterator[Cell]:
    wrong = any(run.fault for run in panel.of(way))
    ours, share = over(panel.of(way), name), our_share(panel, way, name)
    yield Cell(MISSING, wrong) if ours is None else spread_cell(ours, name, wrong)
    yield Cell(MISSING if share is None else f"{number(100 * share)} %", wrong)
    row = published.comparison().row(way.name)
    by_workload = {} if row is None else row.by_workload
    yield Cell(_range([by_workload[each][name] for each in _workloads(panel) if each in by_workload], ""))
    yield Cell(_range([100 * share for share in _shares(panel, way, name)], " %"))


def our_share(panel: Panel, way: Way, name: str) -> float | None:
    ours, base = over(panel.of(way), name), over(panel.of(Way("godwit", published.comparison().baseline)), name)
    return ours.median / base.median if ours is not None and base is not None and base.median > 0 else None


def _shares(panel: Panel, way: Way, name: str) -> list[float]:
    return published.comparison().shares(way.name, name, _workloads(panel))


def _workloads(panel: Panel) -> list[str]:
    """The paper's figures of the same workload if it has it, of all otherwise."""
    all_of_them = published.comparison().workloads
    return [panel.workload] if panel.workload in all_of_them else all_of_them


def _beside(panel: Panel, way: Way, name: str) -> Beside:
    share, theirs = our_share(panel, way, name), _shares(panel, way, name)
    wrong = any(run.fault for run in panel.of(way))
    band = (100 * min(theirs), 100 * max(theirs)) if theirs else None
    return Beside(Look.of(way, wrong), None if share is None else 100 * share, band)


def _range(values: list[float], unit: str) -> str:
    if not values:
        return NONE
    low, high = number(min(values)), number(max(values))
    return f"{low}{unit}" if low == high else f"{low}-{high}{unit}"


def published_table() -> Part:
    """All of the paper's figures, as they stand there."""
    paper = published.comparison()
    cited = published.papers()[paper.paper]
    opening = Words(f"Disruption / peak jitter in ms. {paper.setting}.", link=(cited.title, cited.link))
    rows = [[Cell(row.name), *(_pair(row.by_workload.get(name)) for name in paper.workloads)] for row in paper.rows]
    return Part(f"As published: {paper.paper}", [opening, Table(["", *paper.workloads], rows)])


def _pair(figures: dict[str, float] | None) -> Cell:
    return Cell(NONE if figures is None else " / ".join(number(figures[name]) for name in published.FIGURES))

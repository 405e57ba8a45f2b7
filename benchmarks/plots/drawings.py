"""Which pictures a part has, and from which runs: timelines of median runs, bars, sweeps, phases, the cost of a row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.plots import charts, published
from benchmarks.plots.blocks import Block, Cell, Pictures, Table
from benchmarks.plots.captions import JITTER
from benchmarks.plots.cells import spread_cell
from benchmarks.plots.charts import Bar, Line, Look, Paper
from benchmarks.plots.evaluation import Evaluation, Panel, Run, Spread, median_run, over
from benchmarks.plots.figures import MISSING, figure, number, point, swept, value_text
from benchmarks.plots.groups import Group
from benchmarks.plots.timelines import Window, timeline

COST: Final = "microseconds_per_row"
TIMELINES: Final = (
    "Latency of the rows that left in each 100 ms of the median run: p99 thick, p50 thin, a gap where none left."
    " Dashed: the request; shaded: the migration's phases."
)
COLOURS: Final = 9  # the page's style has so many for phases; a tenth shares the first one's


@dataclass(frozen=True, slots=True)
class Classes:
    """The colour of each phase, and of each part of a row's cost: the same all over the report."""

    phases: dict[str, str]
    costs: dict[str, str]

    @classmethod
    def of(cls, evaluation: Evaluation) -> Classes:
        costs = dict.fromkeys(name for run in evaluation.runs for name in run.numbers(COST))
        return cls(_classes(phase_order(evaluation.runs)), _classes(costs))


def _classes(names: Iterable[str]) -> dict[str, str]:
    return {name: f"p{index % COLOURS}" for index, name in enumerate(names)}


def phase_order(runs: Sequence[Run]) -> list[str]:
    """Phases by the place they mostly have in a migration."""
    places: dict[str, list[int]] = {}
    for run in runs:
        for index, name in enumerate(dict.fromkeys(name for name, _, _ in run.spans())):
            places.setdefault(name, []).append(index)
    return sorted(places, key=lambda name: (sum(places[name]) / len(places[name]), name))


def timelines(groups: Sequence[Group], classes: Classes) -> Iterator[Block]:
    medians = [(group.look, median_run([run for run in group.runs if _timed(run)], JITTER)) for group in groups]
    shown = [(look, run) for look, run in medians if run is not None]
    if shown:
        window = Window.of([run for _, run in shown])
        drawn = [timeline(run, look, window, classes.phases) for look, run in shown]
        seen = {name for _, run in shown for name, _, _ in run.spans()}
        looks = [Look(f"phase: {name}", f"{kind} shade", 1) for name, kind in classes.phases.items() if name in seen]
        yield Pictures(drawn, charts.legend(looks), TIMELINES)


def _timed(run: Run) -> bool:
    return any(value is not None for value in (run.line.get("timeline") or {}).get("p99_ms") or ())


def bars(groups: Sequence[Group], names: Sequence[str]) -> Iterator[Block]:
    drawn = []
    for name in names:
        rows = [_bar(group, name) for group in groups]
        if any(row.value for row in rows):
            drawn.append(charts.bars(figure(name).heading, figure(name).unit, rows))
    if drawn:
        yield Pictures(drawn, caption="Medians; whiskers are from the least to the greatest run.")


def _bar(group: Group, name: str) -> Bar:
    value, per = over(group.runs, name), figure(name).per
    if value is None:
        return Bar(group.look, None, MISSING)
    if math.isinf(value.median):
        return Bar(group.look, None, number(value.median))
    return Bar(group.look, scaled(value, per), value_text(value, name))


def scaled(value: Spread, per: float) -> Spread:
    """In units of the figure; what is beyond all bounds ends at the median, so that a whisker stays on the page."""
    most = value.most if math.isfinite(value.most) else value.median
    return Spread(value.median / per, value.least / per, most / per, value.runs)


def sweeps(panel: Panel, groups: Sequence[Group], names: Sequence[str]) -> Pictures:
    ticks = [(at, point(panel.swept, at)) for at in panel.points]
    drawn = []
    for name in names:
        shown, paper = figure(name), _paper(panel.swept) if name == JITTER else None
        lines = [_line(group, panel.points, name) for group in groups]
        drawn.append(charts.sweep(shown.heading, shown.unit, swept(panel.swept), lines, ticks, paper))
    looks = [group.look for group in groups]
    line = published.sweep(panel.swept) if JITTER in names else None
    if line is not None:
        looks.append(Look(f"{line.way}, {line.paper} (published)", "paper-mark", 2))
    return Pictures(drawn, charts.legend(looks), "Medians; the band is from the least to the greatest run.")


def _line(group: Group, points: Sequence[float], name: str) -> Line:
    points_of_group = [(at, over(group.at(at), name)) for at in points]
    return Line(group.look, [(at, scaled(each, figure(name).per)) for at, each in points_of_group if each is not None])


def _paper(parameter: str) -> Paper | None:
    line = published.sweep(parameter)
    if line is None:
        return None
    label = f"{line.paper}, published"
    if line.values:
        return Paper(label, list(zip(line.at, line.values, strict=True)))
    low, high = line.between
    return Paper(label, [(at, low) for at in line.at], (low, high))


def phases(groups: Sequence[Group], classes: Classes) -> Iterator[Block]:
    medians = [
        (group.look, median_run([run for run in group.runs if run.spans()], "reconfiguration_s")) for group in groups
    ]
    shown = [(look, run) for look, run in medians if run is not None]
    if shown:
        names = phase_order([run for _, run in shown])
        legend = charts.legend([Look(name, f"{classes.phases[name]} phase", 1) for name in names])
        yield Pictures([charts.phases("phases of the median run", shown, classes.phases)], legend)


def row_costs(panel: Panel, groups: Sequence[Group], classes: Classes) -> Iterator[Block]:
    """Where the microseconds of a row go, for each way and point that was profiled."""
    groups_with_parts = []
    for group in groups:
        for at in panel.places:
            runs = group.runs if at is None else group.at(at)
            costs = {name: Spread.of(run.numbers(COST).get(name) for run in runs) for name in classes.costs}
            known = {name: each for name, each in costs.items() if each is not None}
            if known:
                suffix = "" if at is None else f" {point(panel.swept, at)}"
                look = Look(group.look.label + suffix, group.look.class_, group.look.mark, group.wrong)
                groups_with_parts.append((look, known))
    if not groups_with_parts:
        return
    rows = [(look, {name: each.median for name, each in known.items()}) for look, known in groups_with_parts]
    legend = charts.legend([Look(name, f"{classes.costs[name]} phase", 1) for name in classes.costs])
    yield Pictures([charts.stacked("cost of a row", "µs", rows, classes.costs)], legend)
    cells = [
        [Cell(look.label, look.wrong), *(spread_cell(known.get(name), COST, look.wrong) for name in classes.costs)]
        for look, known in groups_with_parts
    ]
    yield Table(["µs a row", *classes.costs], cells)

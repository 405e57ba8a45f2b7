"""What the report says, section by section, as blocks that HTML and Markdown are made from alike.

An experiment or a figure that is not there is said to be not measured; one that is not exact is marked wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Final

from benchmarks.peers.peer_settings import KAFKA
from benchmarks.plots import drawings, published
from benchmarks.plots.blocks import Block, Cell, Part, Section, Table, Words
from benchmarks.plots.captions import EXPERIMENTS, JITTER, Experiment
from benchmarks.plots.cells import NONE, spread_cell
from benchmarks.plots.drawings import Classes
from benchmarks.plots.evaluation import Evaluation, Panel, Run, Spread, over
from benchmarks.plots.figures import MISSING, SWEPT, bytes_, figure, number, point, swept
from benchmarks.plots.groups import Group, grouped
from benchmarks.report.comparison import compared, published_table
from benchmarks.report.real_time_aims import aims_section
from benchmarks.report.summary import summary
from benchmarks.running.triggers import REAL_TIME

LATE: Final = "†"
LOAD: Final = "rate_rows_per_s"


def sections(evaluation: Evaluation) -> list[Section]:
    classes = Classes.of(evaluation)
    experiments = (_section(evaluation, each, classes) for each in EXPERIMENTS)
    return [summary(evaluation), aims_section(evaluation), *experiments]


def _section(evaluation: Evaluation, experiment: Experiment, classes: Classes) -> Section:
    name = experiment.name
    after = published.after(name)
    shows = experiment.shows + (f" After {after}." if after else "")
    ordered = sorted(evaluation.panels(name), key=_rank)
    panels = [part for panel in ordered for part in _split(panel, _compared(panel, experiment))]
    opening = [Words(shows), *([] if panels else [Words(MISSING)])]
    remarks = [_remark(paper, text) for paper, text in published.remarks(name)]
    there = {each for each in experiment.figures if any(over(p.runs, each) for _, p in panels)}
    parts = [_part(panel, title, _compared(panel, experiment), classes, there) for title, panel in panels]
    if name == "E1":
        parts.append(published_table())
    return Section(name, f"{name}: {experiment.title}", [*opening, *remarks], parts)


def _compared(panel: Panel, experiment: Experiment) -> Experiment:
    """Where all had the same order, it is the protocols that are compared."""
    same = len({run.text("order") for run in panel.runs}) <= 1
    own = experiment.of(panel.trigger)
    return replace(own, by="way") if same and own.by == "order" else own


def _rank(panel: Panel) -> int:
    """Nothing swept first, then as the parameters are listed."""
    known = ["", *SWEPT]
    return known.index(panel.swept) if panel.swept in known else len(known)


def _remark(paper: str, text: str) -> Words:
    source = published.papers()[paper]
    return Words(f"As published, {paper}: {text}.", link=(source.title, source.link) if source.title else None)


def _split(panel: Panel, experiment: Experiment) -> Iterator[tuple[str, Panel]]:
    """Where orders are compared, each protocol's stand by themselves."""
    trigger = f"{panel.trigger} trigger" if panel.trigger else ""
    by = f"by {swept(panel.swept).split(',')[0]}" if panel.swept else ""
    if experiment.by == "way":
        yield ", ".join(filter(None, [panel.workload, trigger, by])), panel
        return
    for way in panel.ways:
        yield ", ".join(filter(None, [panel.workload, way.label, trigger, by])), panel.only(panel.of(way))


def _part(panel: Panel, title: str, experiment: Experiment, classes: Classes, there: Set[str]) -> Part:
    groups = grouped(panel, experiment.by)
    blocks: list[Block] = [Words(_setting(panel))]
    if panel.swept:
        blocks += _swept(panel, groups, experiment, there)
    else:
        blocks += drawings.timelines(groups, classes)
        blocks += drawings.bars(groups, experiment.drawn)
        blocks += _flat(groups, experiment, there)
        blocks += [*drawings.phases(groups, classes), *_phase_table(groups)] if experiment.phases else ()
        blocks += compared(panel) if experiment.name == "E1" else ()
    blocks += drawings.row_costs(panel, groups, classes)
    return Part(title, [*blocks, *_notes(groups), *_not_through_kafka(panel)])


# -- tables ------------------------------------------------------------------------------------------------------------


def _flat(groups: Sequence[Group], experiment: Experiment, there: Set[str]) -> Iterator[Block]:
    """A row a way, a column a figure; a figure that nothing in the experiment has is named below instead."""
    loads = {run.number(LOAD) for group in groups for run in group.runs}
    # A load that was the same for all is said above the table.
    columns = [name for name in experiment.columns if name != LOAD or len(loads) > 1]
    known = [name for name in columns if any(over(group.runs, name) for group in groups)]
    if known:
        head = [experiment.by if experiment.by == "order" else "protocol", *(figure(name).headed for name in known)]
        yield Table(head, [[_name(group), *(_cell(group.runs, name) for name in known)] for group in groups])
    missing = [figure(name).heading for name in columns if name not in there]
    if missing:
        yield Words(f"{MISSING.capitalize()}: {', '.join(missing)}.")


def _swept(panel: Panel, groups: Sequence[Group], experiment: Experiment, there: Set[str]) -> Iterator[Block]:
    """A table a figure: a row a way, a column a point."""
    points = panel.points
    known = [name for name in experiment.drawn if points and any(over(group.runs, name) for group in groups)]
    if known:
        yield drawings.sweeps(panel, groups, known)
    for name in known:
        head = [f"{figure(name).headed}, by {swept(panel.swept)}", *(point(panel.swept, at) for at in points)]
        rows = [[_name(group), *(_cell(group.at(at), name) for at in points)] for group in groups]
        yield Table(head, [*rows, *(_published(panel.swept, points) if name == JITTER else ())])
    line = published.sweep(panel.swept)
    if line is not None and JITTER in known:
        at = ", ".join(point(panel.swept, value) for value in line.at)
        yield _remark(line.paper, f"peak jitter of its way ({line.way} here) {line.text()}, at {at}; {line.setting}")
    missing = [figure(name).heading for name in experiment.drawn if name not in there]
    if missing:
        yield Words(f"{MISSING.capitalize()}: {', '.join(missing)}.")


def _published(parameter: str, points: Sequence[float]) -> Iterator[list[Cell]]:
    """A row of what is published, if it says something of one of these points."""
    line = published.sweep(parameter)
    told = [line.at_point(at) for at in points] if line is not None else []
    if line is not None and any(told):
        yield [Cell(f"{line.way}, {line.paper} (published)"), *(Cell(each or NONE) for each in told)]


def _phase_table(groups: Sequence[Group]) -> Iterator[Block]:
    """Seconds that each phase took, over runs; phases of steps that go side by side overlap."""
    names = drawings.phase_order([run for group in groups for run in group.runs])
    rows = []
    for group in groups:
        lengths = [_lengths(run) for run in group.runs if run.spans()]
        spreads = [Spread.of(each.get(name) for each in lengths) for name in names]
        cells = [spread_cell(each, "phase_s", group.wrong) for each in spreads]
        rows += [[_name(group), *cells]] if lengths else []
    if rows:
        yield Table(["phase, s", *names], rows)


def _lengths(run: Run) -> dict[str, float]:
    lengths: dict[str, float] = {}
    for name, first, last in run.spans():
        lengths[name] = lengths.get(name, 0.0) + last - first
    return lengths


def _name(group: Group) -> Cell:
    late = "" if all(run.sustained for run in group.runs) else f" {LATE}"
    return Cell(group.look.label + late + (" (not exact)" if group.wrong else ""), group.wrong)


def _cell(runs: Sequence[Run], name: str) -> Cell:
    return spread_cell(over(runs, name), name, any(run.fault for run in runs))


# -- words ---------------------------------------------------------------------------------------------------------------


def _notes(groups: Sequence[Group]) -> Iterator[Block]:
    if any(not run.sustained for group in groups for run in group.runs):
        yield Words(f"{LATE} did not carry the load: rows queue, and its latencies grow with the length of the run.")
    for group in groups:
        yield from _not_taken_over(group)
        yield from _outlasted(group)
        for fault in dict.fromkeys(run.fault for run in group.runs if run.fault):
            yield Words(f"Not exact: {group.look.label}: {fault}.", wrong=True)


def _not_through_kafka(panel: Panel) -> Iterator[Block]:
    """Older runs in real time went another way, and their latencies leave out what Kafka adds."""
    ours = [run for run in panel.runs if run.text("trigger") == REAL_TIME]
    if any(run.text("through") != KAFKA for run in ours):
        yield Words("These runs did not go through Kafka: the benchmark made and took the rows itself.")


def _outlasted(group: Group) -> Iterator[Block]:
    """Where rows end before the move does, its last part delays nobody, and the figures are too good."""
    short = [run for run in group.runs if run.line.get("load_outlasted_it") is False]
    if short:
        yield Words(
            f"{group.look.label}: in {len(short)} of {len(group.runs)} runs the load ended before the move did."
        )


def _not_taken_over(group: Group) -> Iterator[Block]:
    """Where others were to take over; ways by which nobody ever does are meant to be so."""
    stayed = [run for run in group.runs if run.line.get("taken_over") is False]
    if 0 < len(stayed) < len(group.runs):
        reasons = ", ".join(dict.fromkeys(run.text("reason").split("] ")[-1].split(" (host=")[0] for run in stayed))
        ways = (
            f"in {len(stayed)} of {len(group.runs)} runs nobody took over, and the host was started again from storage"
        )
        yield Words(f"{group.look.label}: {ways} ({reasons}).")


def _setting(panel: Panel) -> str:
    """What was the same for all: said once."""
    shown_fields = (
        ("keys", "keys", number),
        ("state_bytes", "a key", bytes_),
        ("keys_moved", "keys moved", number),
        ("hosts", "hosts", number),
        ("rate_rows_per_s", "rows/s", number),
    )
    parts = []
    for name, unit, write in shown_fields:
        values = sorted({value for run in panel.runs if (value := run.number(name)) is not None})
        if values and name.removesuffix("_rows_per_s") != panel.swept:
            shown = write(values[0]) if len(values) == 1 else f"{write(values[0])} to {write(values[-1])}"
            parts.append(f"{shown} {unit}")
    return f"{', '.join([*parts, _repeats(panel)])}; median (least-greatest) over runs."


def _repeats(panel: Panel) -> str:
    places = (
        (way, at, order) for way in panel.ways for at in panel.places for order in {r.text("order") for r in panel.runs}
    )
    counts = {sum(run.text("order") == order for run in panel.of(way, at)) for way, at, order in places} - {0}
    low, high = min(counts), max(counts)
    return f"{low} run{'s' * (low != 1)} each" if low == high else f"{low} to {high} runs each"

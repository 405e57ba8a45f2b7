"""The pictures: bars, sweeps, phases, parts of a whole, ours beside published. Figures in, SVG out; nothing is computed.

A way has its colour and its mark everywhere (classes w0, w1, ... of the page's style); so has a phase (p0, p1, ...).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.plots import svg
from benchmarks.plots.evaluation import WAYS, Run, Spread, Way
from benchmarks.plots.figures import number
from benchmarks.plots.svg import Scale

LEFT: Final = 46.0
RIGHT: Final = 350.0
NAMES: Final = 112.0  # room for the names beside bars
ROW: Final = 20.0
WRONG: Final = " ✗"


@dataclass(frozen=True, slots=True)
class Look:
    """How something is told apart from others: its name, colour class and mark."""

    label: str
    class_: str
    mark: int = 0
    wrong: bool = False

    @classmethod
    def of(cls, way: Way, wrong: bool = False) -> Look:
        known = way.rank[0] < len(WAYS)
        return cls(way.label, f"w{way.rank[0]}" if known else "wx", way.rank[0], wrong)

    def name(self, y: float) -> str:
        shown = self.label if len(self.label) < 18 else self.label[:16] + "…"
        words = svg.text(NAMES - 6, y + 4, shown + WRONG * self.wrong, "name wrong" if self.wrong else "name", "end")
        return words if shown == self.label else svg.tag("g", svg.title(self.label), words)


def span_title(name: str, first: float, last: float) -> str:
    return svg.title(f"{name}: {first:.3f} to {last:.3f} s")


# -- bars --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    look: Look
    value: Spread | None
    text: str


def bars(heading: str, unit: str, rows: Sequence[Bar]) -> str:
    """Medians, logarithmic, with a whisker from the least to the greatest run."""
    top = 24.0
    bottom = top + ROW * len(rows)
    values = [value for row in rows if row.value for value in (row.value.least, row.value.median, row.value.most)]
    x = Scale.around(values, NAMES, 282.0, log=True)
    parts = [svg.text(0, 13, heading, "head"), svg.bottom_axis(x, top, bottom, f"{unit}, logarithmic")]
    for index, row in enumerate(rows):
        parts += _bar(row, x, top + ROW * (index + 0.5))
    return svg.picture(bottom + 32, f"{heading} by protocol", parts)


def _bar(row: Bar, x: Scale, y: float) -> Iterator[str]:
    yield row.look.name(y)
    if row.value is None:
        yield svg.text(NAMES + 4, y + 4, row.text, "missing")
        return
    low, mid, high = (x(value) for value in (row.value.least, row.value.median, row.value.most))
    yield svg.rect(x.start, y - 6, mid, y + 6, f"bar {row.look.class_}", svg.title(f"{row.look.label}: {row.text}"))
    if high > low:
        yield svg.line(low, y, high, y, "whisker") + svg.line(low, y - 3, low, y + 3, "whisker")
        yield svg.line(high, y - 3, high, y + 3, "whisker")
    yield svg.text(max(high, mid) + 5, y + 4, number(row.value.median), "value")


# -- sweeps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    look: Look
    points: Sequence[tuple[float, Spread]]


@dataclass(frozen=True, slots=True)
class Paper:
    """A line that somebody else has published: points, or a band where only the range is told."""

    label: str
    points: Sequence[tuple[float, float]]
    band: tuple[float, float] | None = None


def sweep(
    heading: str, unit: str, along: str, lines: Sequence[Line], ticks: Sequence[tuple[float, str]], paper: Paper | None
) -> str:
    """A line a way through the medians, a band from the least to the greatest run."""
    top, bottom = 40.0, 190.0
    ats = [at for at, _ in ticks]
    values = [
        value for line in lines for _, spread in line.points for value in (spread.least, spread.median, spread.most)
    ]
    values += [value for _, value in paper.points] + list(paper.band or ()) if paper else []
    # A sweep over decades needs a logarithmic scale; a whole factor of 20 is where a linear one loses the low end.
    x = Scale(min(ats), max(*ats, min(ats) + 1e-9), LEFT + 16, RIGHT - 12)
    if min(ats) > 0 and max(ats) > 20 * min(ats):
        x = Scale(min(ats), max(ats), LEFT + 2, RIGHT - 12, log=True)
    above = [value for value in values if value > 0] or [1.0]
    y = Scale.around(values, bottom, top, log=max(above) > 20 * min(above))
    parts = [
        svg.text(0, 13, heading, "head"),
        svg.bottom_axis(x, top, bottom, along, ticks),
        svg.left_axis(y, LEFT, RIGHT, f"{unit}, logarithmic" if y.log else unit),
        *(_published(paper, x, y) if paper else ()),
    ]
    for each in lines:
        parts += _line(each, x, y)
    return svg.picture(bottom + 32, f"{heading} by {along}", parts)


def _line(line: Line, x: Scale, y: Scale) -> Iterator[str]:
    known = [(at, spread) for at, spread in line.points if math.isfinite(spread.median)]
    edge = [(x(at), y(spread.most)) for at, spread in known] + [
        (x(at), y(spread.least)) for at, spread in reversed(known)
    ]
    if len(known) > 1:
        corners = " ".join(f"{svg.place(across)},{svg.place(up)}" for across, up in edge)
        yield svg.tag("polygon", points=corners, class_=f"band {line.look.class_}")
    yield svg.path([(x(at), y(spread.median)) for at, spread in known], f"line {line.look.class_}")
    for at, spread in known:
        title = (
            f"{line.look.label}: {number(spread.median)} ({number(spread.least)}-{number(spread.most)}) at {number(at)}"
        )
        yield svg.mark(x(at), y(spread.median), line.look.mark, f"mark {line.look.class_}", svg.title(title))


def _published(paper: Paper, x: Scale, y: Scale) -> Iterator[str]:
    if paper.band is not None:
        low, high = paper.band
        first, last = paper.points[0][0], paper.points[-1][0]
        yield svg.rect(x(first), y(high), x(last), y(low), "paper-band", svg.title(paper.label))
        return
    inside = [(at, value) for at, value in paper.points if x.low <= at <= x.high]
    yield svg.path([(x(at), y(value)) for at, value in inside], "paper")
    for at, value in inside:
        yield svg.mark(x(at), y(value), 2, "paper-mark", svg.title(f"{paper.label}: {number(value)} at {number(at)}"))


# -- phases, shares ------------------------------------------------------------------------------------------------------


def phases(heading: str, rows: Sequence[tuple[Look, Run]], classes: Mapping[str, str]) -> str:
    """When each phase of a migration began and ended, in the median run."""
    top = 24.0
    bottom = top + ROW * len(rows)
    x = Scale.around([last for _, run in rows for _, _, last in run.spans()], NAMES, RIGHT - 8, log=False)
    parts = [svg.text(0, 13, heading, "head"), svg.bottom_axis(x, top, bottom, "s after the request")]
    for index, (look, run) in enumerate(rows):
        y = top + ROW * (index + 0.5)
        parts.append(look.name(y))
        for name, first, last in run.spans(gap_s=x.step):
            seen = max(x(last), x(first) + 1.0)
            parts.append(
                svg.rect(x(first), y - 6, seen, y + 6, f"phase {classes[name]}", span_title(name, first, last))
            )
    return svg.picture(bottom + 32, heading, parts)


def stacked(
    heading: str, unit: str, rows: Sequence[tuple[Look, Mapping[str, float]]], classes: Mapping[str, str]
) -> str:
    """What a whole is made of."""
    top = 24.0
    bottom = top + ROW * len(rows)
    x = Scale.around([sum(parts.values()) for _, parts in rows], NAMES, RIGHT - 46, log=False)
    drawn = [svg.text(0, 13, heading, "head"), svg.bottom_axis(x, top, bottom, unit)]
    for index, (look, parts) in enumerate(rows):
        y = top + ROW * (index + 0.5)
        drawn.append(look.name(y))
        done = 0.0
        for name, value in parts.items():
            title = svg.title(f"{name}: {number(value)} {unit}")
            drawn.append(svg.rect(x(done), y - 6, x(done + value), y + 6, f"phase {classes[name]}", title))
            done += value
        drawn.append(svg.text(x(done) + 5, y + 4, number(done), "value"))
    return svg.picture(bottom + 32, heading, drawn)


# -- ours beside what is published ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beside:
    """Parts of what a restart costs, in percent: ours, and the range of what is published."""

    look: Look
    ours: float | None
    published: tuple[float, float] | None


def beside(heading: str, rows: Sequence[Beside]) -> str:
    top = 24.0
    bottom = top + ROW * len(rows)
    values = [value for row in rows for value in (row.ours, *(row.published or ())) if value is not None]
    x = Scale.around(values, NAMES, RIGHT - 12, log=True)
    parts = [svg.text(0, 13, heading, "head"), svg.bottom_axis(x, top, bottom, "% of a restart, logarithmic")]
    for index, row in enumerate(rows):
        parts += _beside(row, x, top + ROW * (index + 0.5))
    return svg.picture(bottom + 32, f"{heading}, ours beside published", parts)


def _beside(row: Beside, x: Scale, y: float) -> Iterator[str]:
    yield row.look.name(y)
    if row.published is not None:
        low, high = row.published
        if low == high:
            title = svg.title(f"{row.look.label}, published: {number(low)} %")
            yield svg.mark(x(low), y, 2, "paper-mark", title, radius=4)
        else:
            title = svg.title(f"{row.look.label}, published: {number(low)}-{number(high)} %")
            yield svg.rect(x(low), y - 5, x(high), y + 5, "paper-band", title)
    if row.ours is not None:
        title = svg.title(f"{row.look.label}, ours: {number(row.ours)} %")
        yield svg.mark(x(row.ours), y, row.look.mark, f"mark {row.look.class_}", title, radius=4)


def legend(looks: Sequence[Look]) -> str:
    """Names with their colours and marks, in HTML, so that they wrap on a narrow screen."""
    return "".join(
        svg.tag(
            "span",
            svg.tag(
                "svg", svg.mark(7, 7, look.mark, f"mark {look.class_}", radius=4.5), viewBox="0 0 14 14", class_="key"
            ),
            escape(look.label),
            class_="item",
        )
        for look in looks
    )

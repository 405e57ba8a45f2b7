"""Drawing: elements as text, scales from values to places, axes. It knows nothing of what is drawn.

Written by hand rather than with a plotting library: text stays text, colours are the page's (light, dark, print), a picture
is a few kilobytes, and the same input gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 360
CHARACTER: Final = 6.2  # width of a letter of 11 px, on the safe side
ZERO_GAP: Final = 20.0  # on a logarithmic scale 0 has a place of its own, so far below the least value


def tag(name: str, *children: str, **given: str | float | None) -> str:
    """An element; `class_` for class, `stroke_width` for stroke-width; None leaves an attribute out."""
    attributes = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(place(value) if isinstance(value, int | float) else value)}"'
        for key, value in given.items()
        if value is not None
    )
    return f"<{name}{attributes}>{''.join(children)}</{name}>" if children else f"<{name}{attributes}/>"


def place(value: float) -> str:
    """A coordinate: a tenth of a pixel is enough."""
    return (
        f"{value:.1f}".removesuffix(".0").replace("-0", "0") if abs(value) < 0.05 else f"{value:.1f}".removesuffix(".0")
    )


def text(x: float, y: float, words: str, class_: str = "", anchor: str | None = None) -> str:
    return tag("text", escape(words), x=x, y=y, class_=class_ or None, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rect(x1: float, y1: float, x2: float, y2: float, class_: str, *children: str) -> str:
    return tag("rect", *children, x=x1, y=y1, width=max(x2 - x1, 0.0), height=max(y2 - y1, 0.0), class_=class_)


def title(words: str) -> str:
    """What is shown when the pointer rests on an element."""
    return tag("title", escape(words))


def path(points: Iterable[tuple[float, float] | None], class_: str) -> str:
    """A line through the points; None breaks it. A point alone between breaks becomes a dot (line caps are round)."""
    parts: list[str] = []
    pen = False
    for point in points:
        if point is None:
            pen = False
            continue
        x, y = map(place, point)
        parts.append(f"L{x} {y}" if pen else f"M{x} {y}h0")
        pen = True
    return tag("path", d="".join(parts), class_=class_) if parts else ""


MARKS: Final = (  # shapes that differ where colours may not
    "M{l} {y}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0",
    "M{l} {t}h{d}v{d}h-{d}z",
    "M{x} {t}L{right} {y}L{x} {b}L{l} {y}z",
    "M{x} {t}L{right} {b}L{l} {b}z",
    "M{x} {b}L{right} {t}L{l} {t}z",
)


def mark(x: float, y: float, shape: int, class_: str, *children: str, radius: float = 3.2) -> str:
    sides = {"l": x - radius, "right": x + radius, "t": y - radius, "b": y + radius}
    places = {**sides, "x": x, "y": y, "r": radius, "d": 2 * radius}
    drawn = MARKS[shape % len(MARKS)].format(**{name: place(value) for name, value in places.items()})
    return tag("path", *children, d=drawn, class_=class_)


def picture(height: float, label: str, parts: Iterable[str]) -> str:
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {place(height)}", role="img", aria_label=label, class_="chart")


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places. What lies outside is put on the edge; on a logarithmic scale 0 lies below all else."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, log: bool) -> Scale:
        """Wide enough for all values: whole decades, or from 0 on."""
        known = [value for value in values if math.isfinite(value)]
        if not log:
            return cls(min([0.0, *known]), max(known, default=1.0) or 1.0, start, end)
        above = [value for value in known if value > 0] or [1.0]
        low = 10.0 ** math.floor(math.log10(min(above)))
        high = 10.0 ** math.ceil(math.log10(max(above)) - 1e-9)
        return cls(low, max(high, low * 10), start, end, log=True)

    def __call__(self, value: float) -> float:
        if not self.log:
            return self._at((value - self.low) / (self.high - self.low), self.start)
        if value <= 0:
            return self.start
        share = (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return self._at(share, self.start + math.copysign(ZERO_GAP, self.end - self.start))

    def _at(self, share: float, start: float) -> float:
        return start + min(max(share, 0.0), 1.0) * (self.end - start)

    @property
    def step(self) -> float:
        """How much of a linear scale is one pixel: what is nearer than that cannot be told apart."""
        return (self.high - self.low) / abs(self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            powers = range(first, last + 1, max(1, math.ceil((last - first) / most)))
            return [0.0, *(10.0**power for power in powers)]
        step = _step((self.high - self.low) / most)
        counts = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return [round(count * step, 9) for count in counts]


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= least * (1 - 1e-9))


def short(value: float) -> str:
    """A number beside an axis: 1k rather than 1,000."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def spaced(places: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Labels along a line that leave each other room: those that would overlap the one before are left out."""
    labels: list[tuple[float, str]] = []
    for x, words in sorted(places):
        half = (len(words) + 1) * CHARACTER / 2
        if not labels or x - half >= labels[-1][0] + (len(labels[-1][1]) + 1) * CHARACTER / 2:
            labels.append((x, words))
    return labels


def bottom_axis(scale: Scale, top: float, bottom: float, label: str, ticks: Sequence[tuple[float, str]] = ()) -> str:
    """Grid lines upward, numbers and a label below; the ticks are the scale's unless given."""
    labels = ticks or [(tick, short(tick)) for tick in scale.ticks()]
    placed = [(scale(value), words) for value, words in labels]
    grid = [line(x, top, x, bottom, "grid") for x, _ in placed]
    words = [text(x, bottom + 13, words, "tick", "middle") for x, words in spaced(placed)]
    middle = (scale.start + scale.end) / 2
    return "".join([*grid, *words, text(middle, bottom + 27, label, "label", "middle")])


def left_axis(scale: Scale, left: float, right: float, label: str) -> str:
    grid = [line(left, scale(tick), right, scale(tick), "grid") for tick in scale.ticks()]
    words = [text(left - 5, scale(tick) + 3.5, short(tick), "tick", "end") for tick in scale.ticks()]
    return "".join([*grid, *words, text(4, scale.end - 8, label, "label")])

"""What a report is made of, whatever it is written in: sections of parts, parts of words, tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Words:
    text: str
    wrong: bool = False
    link: tuple[str, str] | None = None  # what it is called, where it leads


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    wrong: bool = False
    around: str = ""  # the range that it lies in


@dataclass(frozen=True, slots=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Pictures:
    """Ready SVG, side by side where there is room, with a legend (ready HTML) and how to read it above."""

    drawn: Sequence[str]
    legend: str = ""
    caption: str = ""


Block = Words | Table | Pictures


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    title: str
    blocks: Sequence[Block]
    parts: Sequence[Part] = field(default_factory=tuple)

"""Records: answers for people, with named fields and a text that can be read.

A field is an attribute, `status.hosts`. Programs that choose fields can read them by name as well: `status["hosts"]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any


class ResultRecord:
    """The base of frozen dataclasses. `to_dict()` has the same content in types that JSON has."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        """The names of the fields."""
        return (field.name for field in fields(self))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(fields(self))  # type: ignore[arg-type]

    def get(self, name: str, default: Any = None) -> Any:
        """The field of this name, or the default if there is none."""
        return getattr(self, name) if name in self else default

    def items(self) -> list[tuple[str, Any]]:
        """Names and values of the fields."""
        return [(name, getattr(self, name)) for name in self]

    def to_dict(self) -> dict[str, Any]:
        """The fields as a plain dict, also in the fields themselves."""
        return {name: _plain(value) for name, value in self.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, (Mapping, ResultRecord)):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def aligned(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a table for people; None is an empty cell."""
    cells = [tuple(head), *(tuple(map(_cell, row)) for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)

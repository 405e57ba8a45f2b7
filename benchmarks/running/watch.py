"""The progress of a benchmark: what a benchmark reports, and a display receives."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """What goes on, and rows out of how many."""

    def phase(self, text: str) -> None: ...

    def rows(self, seen: int, total: int) -> None: ...

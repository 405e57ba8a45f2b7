"""The log to which an instance appends its changes, as the instance sees it. A host's changelog is one; tests have others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from godwit.errors import GodwitError, StaleRun

NewPart = tuple[dict[str, Any], Any]  # of a frame of the changelog: a description and a body of bytes


class Journal(Protocol):
    """The log to which an instance appends its changes: the host's changelog."""

    def draft(self, parts: Iterable[NewPart]) -> Any:
        """The parts as one frame; nothing is written yet."""
        ...

    def append(self, draft: Any) -> int:
        """Put the frame in line and return its number."""
        ...

    def fail(self, error: GodwitError) -> None:
        """Accept no more frames, because memory and log may differ."""
        ...


class Unwritten:
    """The journal of an instance that is never recovered."""

    def draft(self, parts: Iterable[NewPart]) -> None:
        return None

    def append(self, draft: Any) -> int:
        return -1

    def fail(self, error: GodwitError) -> None:
        return


class Dropped:
    """The journal of an instance that was dropped. A task that still works with the instance changes nothing any more."""

    def __init__(self, operator: str) -> None:
        self._operator = operator

    def draft(self, parts: Iterable[NewPart]) -> None:
        raise StaleRun("the state of this operator was dropped, and this task belongs to it", operator=self._operator)

    def append(self, draft: Any) -> int:
        self.draft(())
        raise AssertionError("a draft is refused")

    def fail(self, error: GodwitError) -> None:
        return

"""Calls that are written down, and made later: an operator is defined when the checkpointLocation of its query is known.

In Spark's tests a query is defined first and gets its checkpointLocation, to which its state belongs, after that. A flock has
its checkpoint from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOCATION = "checkpointLocation"
KNOWN = {"isStreaming": True}  # what a test asks the DataFrame of a query before the query starts


class Deferred:
    """What `make` will give, and calls on it."""

    def __init__(self, make: Callable[[], Any], location: str | None = None) -> None:
        self._make = make
        self._location = location

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in KNOWN:
            return KNOWN[name]
        return Deferred(lambda: getattr(self._make(), name), self._location) if name != "start" else self._start

    def __call__(self, *given: Any, **named: Any) -> Deferred:
        named_here = len(given) == 2 and isinstance(given[0], str) and given[0] == LOCATION
        location = str(given[1]) if named_here else self._location
        return Deferred(
            lambda: self._make()(*map(made, given), **{name: made(each) for name, each in named.items()}), location
        )

    def _start(self, *given: Any, **named: Any) -> Any:
        with queries.of(self._location):
            return self._make().start(*given, **named)


def made(given: Any) -> Any:
    """The value of what was written down; everything else as it is."""
    if isinstance(given, list):
        return [made(each) for each in given]
    return given._make() if isinstance(given, Deferred) else given


class Queries:
    """The query that is being defined and started: its checkpointLocation, and who wants to know."""

    def __init__(self) -> None:
        self.location: str | None = None
        self.defining = False
        self.begun: Callable[[], None] = lambda: None
        self.started: Callable[[], None] = lambda: None

    @contextmanager
    def of(self, location: str | None) -> Iterator[None]:
        self.begun()
        self.location, self.defining = location, True
        try:
            yield
        finally:
            self.defining = False
        self.started()


queries = Queries()

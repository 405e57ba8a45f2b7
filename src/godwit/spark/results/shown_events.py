"""What `Flock.history()` returns: the recorded events, as a list of dicts that prints as lines."""

from __future__ import annotations

from typing import Any

from godwit.spark.results.result_record import aligned

DETAILS_MAX = 160  # characters of a line; the events themselves have everything
_SHOWN = ("at", "event", "migration", "operator")


class Events(list[dict[str, Any]]):
    """Events, oldest first."""

    def __repr__(self) -> str:
        rows = [(*(event.get(name) for name in _SHOWN), _details(event)) for event in self]
        return "\n".join(aligned((*_SHOWN, "details"), rows)) if rows else "no events yet"


def _details(event: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value}" for name, value in event.items() if name not in _SHOWN and value not in ("", []))
    return text if len(text) <= DETAILS_MAX else f"{text[:DETAILS_MAX]}..."

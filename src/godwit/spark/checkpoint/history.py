"""The events of a flock, in order: a file of JSON lines, each durable when its `add` returns.

A request is recorded before anything is done, and its outcome after; so a request without an outcome was interrupted by the end
of an application. People read the file too: times are in UTC, groups are written as spans.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from godwit.state.damage import unusable

FILE = "history.jsonl"
_log = logging.getLogger("godwit.history")
ENDS = frozenset(("ended", "refused", "recovered"))


def now_text() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class History:
    def __init__(self, checkpoint: Path) -> None:
        self._path = checkpoint / FILE
        self._lock = threading.Lock()

    def add(self, event: str, **fields: Any) -> None:
        """Append an event; it is durable when this returns."""
        line = json.dumps({"at": now_text(), "event": event, **fields}, default=str) + "\n"
        _log.debug("%s %s", event, fields)
        with self._lock:
            try:
                self._append(line.encode())
            except OSError as error:
                raise unusable("write", self._path, error) from error

    def _append(self, line: bytes) -> None:
        with self._path.open("ab+") as file:
            # A line that a crash has torn must not join the next line.
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def lines(self, operator: str | None = None) -> list[dict[str, Any]]:
        """All events, oldest first, or those that concern an operator. A line that a crash has torn is left out."""
        with self._lock:
            try:
                text = self._path.read_text(errors="replace")
            except FileNotFoundError:
                return []
            except OSError as error:
                raise unusable("read", self._path, error) from error
        lines = [line for line in map(_parsed, text.splitlines()) if line is not None]
        return lines if operator is None else [line for line in lines if _concerns(line, operator)]

    def unfinished(self) -> dict[str, list[dict[str, Any]]]:
        """The events of every request without an outcome, by request."""
        requests: dict[str, list[dict[str, Any]]] = {}
        for line in self.lines():
            request = line.get("migration")
            if request is not None:
                requests.setdefault(request, []).append(line)
        return {name: lines for name, lines in requests.items() if not any(line["event"] in ENDS for line in lines)}

    def next_number(self) -> int:
        return 1 + len([line for line in self.lines() if line["event"] == "requested"])


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and "event" in line else None


def _concerns(line: dict[str, Any], operator: str) -> bool:
    """An event without an operator concerns all of them."""
    named: set[str] = set(_named(line))
    return not named or operator in named


def _named(line: dict[str, Any]) -> Iterable[str]:
    if "operator" in line:
        yield line["operator"]
    yield from line.get("operators", ())
    yield from (move["operator"] for move in line.get("moves", ()) if isinstance(move, dict))

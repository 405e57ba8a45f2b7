"""What happened to a flock, in the order in which it happened: a file of lines, appended and made durable one by one.

A line says what was asked for before anything is done, and what came of it after; so a request without an outcome is one
that an application's end cut short. People read it too: times are in UTC, groups are spans.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from godwit.state.damage import unusable

FILE = "history.jsonl"
ENDS = frozenset(("ended", "refused", "recovered"))


def now_text() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class History:
    def __init__(self, checkpoint: Path) -> None:
        self._path = checkpoint / FILE
        self._lock = threading.Lock()

    def add(self, event: str, **fields: Any) -> None:
        """One line, durable when this returns."""
        line = json.dumps({"at": now_text(), "event": event, **fields}, default=str) + "\n"
        with self._lock:
            try:
                self._append(line.encode())
            except OSError as error:
                raise unusable("write", self._path, error) from error

    def _append(self, line: bytes) -> None:
        with self._path.open("ab+") as file:
            # A line that a crash has torn stays apart from the next one.
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def lines(self, operator: str | None = None) -> list[dict[str, Any]]:
        """All lines, oldest first, or those that concern an operator. Half a line of a crash is left out."""
        with self._lock:
            try:
                text = self._path.read_text(errors="replace")
            except FileNotFoundError:
                return []
            except OSError as error:
                raise unusable("read", self._path, error) from error
        found = [line for line in map(_parsed, text.splitlines()) if line is not None]
        return found if operator is None else [line for line in found if _concerns(line, operator)]

    def unfinished(self) -> dict[str, list[dict[str, Any]]]:
        """The lines of every request that has no outcome."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in self.lines():
            request = line.get("migration")
            if request is not None:
                found.setdefault(request, []).append(line)
        return {name: lines for name, lines in found.items() if not any(line["event"] in ENDS for line in lines)}

    def next_number(self) -> int:
        return 1 + len([line for line in self.lines() if line["event"] == "requested"])


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and "event" in line else None


def _concerns(line: dict[str, Any], operator: str) -> bool:
    """A line that names no operator concerns all of them."""
    named: set[str] = set(_named(line))
    return not named or operator in named


def _named(line: dict[str, Any]) -> Iterable[str]:
    if "operator" in line:
        yield line["operator"]
    yield from line.get("operators", ())
    yield from (move["operator"] for move in line.get("moves", ()) if isinstance(move, dict))

"""Every error that a user can meet, grouped by what the caller can do: retry, stop, fix the input, or report a bug.

Each leaf class has a stable code. An error carries fields that say where it happened (operator, key, lane, batch, ...) and the
next step (`todo`). Errors travel between processes (host to router, Python worker to driver), so they can be pickled and have a
JSON form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

__all__ = [
    "BadInput",
    "BatchIncomplete",
    "Bug",
    "CheckpointCorrupt",
    "CheckpointInUse",
    "CheckpointMismatch",
    "CheckpointUnusable",
    "CheckpointVersion",
    "DefinitionError",
    "Fenced",
    "FileSystemUnsafe",
    "GodwitError",
    "HostUnavailable",
    "InvariantBroken",
    "MalformedRequest",
    "MoveConflict",
    "NotDeterministic",
    "NotEnoughSlots",
    "NotReplayable",
    "NullKey",
    "OutputMismatch",
    "ProcessorFailed",
    "ProcessorTimeout",
    "Retryable",
    "RowKillsHost",
    "StaleBatch",
    "StaleGeneration",
    "StaleRun",
    "StateTooLarge",
    "StateTypeError",
    "StateUncertain",
    "UnknownKey",
    "UnsupportedQuery",
    "WorkLost",
    "WrongToken",
]


TRACE = "trace"  # the field with the traceback of user code
_FIRST = ("operator", "key", "batch", "lane", "host")  # fields that come before others, in this order


class GodwitError(Exception):
    """What went wrong, where, and what to do next."""

    code: ClassVar[str] = "GODWIT"

    def __init__(self, message: str, *, todo: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.todo = todo
        self.fields = {name: value for name, value in fields.items() if value is not None}

    def __str__(self) -> str:
        """One line with all that a user needs first; then the frames of user code, if the error came from there."""
        known = [name for name in _FIRST if name in self.fields]
        names = [*known, *(name for name in self.fields if name not in known and name != TRACE)]
        where = ", ".join(f"{name}={self.fields[name]}" for name in names)
        text = f"[{self.code}] {self.message}"
        if where:
            text += f" ({where})"
        if self.todo:
            text += f". {self.todo}"
        return f"{text}\nRaised in the processor:\n{self.fields[TRACE]}" if TRACE in self.fields else text

    def __repr__(self) -> str:
        """For notebooks, which show the value of a cell: the same text, after the class."""
        return f"<{type(self).__name__}: {self}>"

    def at(self, **fields: Any) -> Self:
        """Add fields that an outer layer knows (operator, key, lane, batch). A field that is set already stays."""
        self.fields = {name: value for name, value in fields.items() if value is not None} | self.fields
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.code, self.message, self.todo, self.fields)

    def to_json(self) -> str:
        fields = {name: _plain(value) for name, value in self.fields.items()}
        return json.dumps({"code": self.code, "message": self.message, "todo": self.todo, "fields": fields})


class Retryable(GodwitError):
    """Trying again may work; Spark retries the task."""


class Fenced(GodwitError):
    """A newer owner exists: stop, do not retry."""


class BadInput(GodwitError):
    """The caller has to change something first."""


class Bug(GodwitError):
    """Godwit broke one of its own rules: report it with the whole message."""

    code = "GODWIT-BUG"


class HostUnavailable(Retryable):
    code = "GODWIT-HOST-UNAVAILABLE"


class WorkLost(Retryable):
    code = "GODWIT-WORK-LOST"


class StateUncertain(Retryable):
    """Memory may differ from the changelog: this generation of the host ends, and the next one reads the changelog."""

    code = "GODWIT-STATE-UNCERTAIN"


class StaleRun(Fenced):
    code = "GODWIT-STALE-RUN"


class StaleBatch(Fenced):
    code = "GODWIT-STALE-BATCH"


class StaleGeneration(Fenced):
    code = "GODWIT-STALE-GENERATION"


class DefinitionError(BadInput):
    code = "GODWIT-DEFINITION"


class UnsupportedQuery(BadInput):
    code = "GODWIT-UNSUPPORTED-QUERY"


class NullKey(BadInput):
    code = "GODWIT-NULL-KEY"


class NotReplayable(BadInput):
    code = "GODWIT-NOT-REPLAYABLE"


class BatchIncomplete(BadInput):
    code = "GODWIT-BATCH-INCOMPLETE"


class NotDeterministic(BadInput):
    code = "GODWIT-NOT-DETERMINISTIC"


class OutputMismatch(BadInput):
    code = "GODWIT-OUTPUT-MISMATCH"


class StateTypeError(BadInput):
    code = "GODWIT-STATE-TYPE"


class StateTooLarge(BadInput):
    code = "GODWIT-STATE-TOO-LARGE"


class ProcessorFailed(BadInput):
    code = "GODWIT-PROCESSOR-FAILED"


class ProcessorTimeout(BadInput):
    code = "GODWIT-PROCESSOR-TIMEOUT"


class RowKillsHost(BadInput):
    code = "GODWIT-ROW-KILLS-HOST"


class CheckpointMismatch(BadInput):
    code = "GODWIT-CHECKPOINT-MISMATCH"


class CheckpointCorrupt(BadInput):
    code = "GODWIT-CHECKPOINT-CORRUPT"


class CheckpointInUse(BadInput):
    code = "GODWIT-CHECKPOINT-IN-USE"


class CheckpointUnusable(BadInput):
    code = "GODWIT-CHECKPOINT-UNUSABLE"


class CheckpointVersion(BadInput):
    code = "GODWIT-CHECKPOINT-VERSION"


class FileSystemUnsafe(BadInput):
    code = "GODWIT-FILE-SYSTEM-UNSAFE"


class NotEnoughSlots(BadInput):
    code = "GODWIT-NOT-ENOUGH-SLOTS"


class MoveConflict(BadInput):
    code = "GODWIT-MOVE-CONFLICT"


class UnknownKey(BadInput):
    code = "GODWIT-UNKNOWN-KEY"


class WrongToken(BadInput):
    code = "GODWIT-WRONG-TOKEN"


class MalformedRequest(BadInput):
    code = "GODWIT-MALFORMED-REQUEST"


class InvariantBroken(Bug):
    code = "GODWIT-INVARIANT-BROKEN"


def _leaves(root: type[GodwitError]) -> dict[str, type[GodwitError]]:
    leaves = {root.code: root} if "code" in root.__dict__ else {}
    for child in root.__subclasses__():
        leaves |= _leaves(child)
    return leaves


CODES: Mapping[str, type[GodwitError]] = _leaves(GodwitError)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def _rebuild(code: str, message: str, todo: str, fields: dict[str, Any]) -> GodwitError:
    error = CODES.get(code, Bug)(message, todo=todo)
    error.fields = dict(fields)
    return error


def from_json(text: str) -> GodwitError:
    """The error that `to_json` wrote, possibly in another process."""
    data = json.loads(text)
    return _rebuild(data["code"], data["message"], data["todo"], data["fields"])

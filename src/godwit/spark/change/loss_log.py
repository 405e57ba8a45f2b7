"""Tells people, through `logging`, that a host is lost and that it is back, or that a task has failed.

A lost host and its return are one WARNING each, with the host, why and how long.

Decides nothing. What is done about a loss is decided in `lost_hosts`, and recorded in the history.
"""

from __future__ import annotations

import logging
import threading
import time

from godwit.errors import GodwitError, Retryable

_log = logging.getLogger("godwit.hosts")
_task_log = logging.getLogger("godwit.tasks")
TOGETHER_S = 10.0  # the tasks of a batch that fail for the same reason do so within this time


class LossLog:
    """`checkpoint` names the flock: an application may have several, and their hosts have the same names."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        self._lost_at_s: dict[str, float] = {}

    def lost(self, host: str, why: str) -> None:
        """A second notice of the same loss adds no line."""
        with self._lock:
            known = host in self._lost_at_s
            self._lost_at_s.setdefault(host, time.monotonic())
        if not known:
            _log.warning("%s of the flock in %s is lost: %s. Rows of its keys wait", host, self._checkpoint, why)

    def registered(self, host: str, generation: int) -> None:
        """A generation of the host serves."""
        lost_s = self._since(host)
        if lost_s is None:
            _log.debug("%s of the flock in %s serves as generation %d", host, self._checkpoint, generation)
        else:
            text = "%s of the flock in %s is back after %.1f s, as generation %d"
            _log.warning(text, host, self._checkpoint, lost_s, generation)

    def taken_over(self, host: str) -> None:
        lost_s = self._since(host)
        if lost_s is not None:
            text = "%s of the flock in %s is replaced after %.1f s: the other hosts have taken over its keys"
            _log.warning(text, host, self._checkpoint, lost_s)

    def _since(self, host: str) -> float | None:
        with self._lock:
            lost_at_s = self._lost_at_s.pop(host, None)
        return None if lost_at_s is None else time.monotonic() - lost_at_s


class TaskErrorLog:
    """The tasks of a batch mostly fail together, each with the same error: it is logged once, and at level DEBUG after that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[object, ...] = ()
        self._at_s = 0.0

    def failed(self, error: GodwitError) -> None:
        """A task has failed. One that Spark may run again with success is a WARNING."""
        level = logging.WARNING if isinstance(error, Retryable) else logging.ERROR
        _task_log.log(logging.DEBUG if self._repeats(error) else level, "%s", error)

    def _repeats(self, error: GodwitError) -> bool:
        kind = (error.code, error.fields.get("operator"), error.fields.get("batch"))
        with self._lock:
            now_s = time.monotonic()
            repeats = kind == self._newest and now_s - self._at_s < TOGETHER_S
            self._newest, self._at_s = kind, self._at_s if repeats else now_s
        return repeats

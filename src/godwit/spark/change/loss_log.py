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


def log_task_error(error: GodwitError) -> None:
    """A task that Spark may run again with success is a WARNING."""
    _task_log.log(logging.WARNING if isinstance(error, Retryable) else logging.ERROR, "%s", error)

"""Shortens Python's switch interval while keys move.

In a hand-over several threads pass work to each other about a dozen times, while another thread applies rows. By default a busy
thread may keep Python's global lock for 5 ms, which would delay each of these turns.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TURN_S = 0.0005


class _Users:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.usual_s = 0.0


_users = _Users()


@contextmanager
def prompt() -> Iterator[None]:
    """Use the short interval inside this context; the usual one returns when no thread is in such a context."""
    with _users.lock:
        if not _users.count:
            _users.usual_s = sys.getswitchinterval()
            sys.setswitchinterval(TURN_S)
        _users.count += 1
    try:
        yield
    finally:
        with _users.lock:
            _users.count -= 1
            if not _users.count:
                sys.setswitchinterval(_users.usual_s)

"""While keys move, Python's lock changes hands more often than it does otherwise.

A hand-over is a dozen turns of threads that pass work to each other, between rows that are being applied, and Python lets a
busy thread keep the lock for 5 ms each time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TURN_S = 0.0005


class _Wishes:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.usual_s = 0.0


_wishes = _Wishes()


@contextmanager
def prompt() -> Iterator[None]:
    """For as long as anybody in the process wants it."""
    with _wishes.lock:
        if not _wishes.count:
            _wishes.usual_s = sys.getswitchinterval()
            sys.setswitchinterval(TURN_S)
        _wishes.count += 1
    try:
        yield
    finally:
        with _wishes.lock:
            _wishes.count -= 1
            if not _wishes.count:
                sys.setswitchinterval(_wishes.usual_s)

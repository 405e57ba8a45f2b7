"""Directories for one run of a benchmark, removed at its end.

A query that was stopped may write to its checkpoint for a moment longer, and then the directory cannot be removed. This must
not end a benchmark that has all its figures.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

REMOVE_S: Final = 10.0
_AGAIN_S: Final = 0.1


@contextmanager
def scratch(prefix: str = "godwit-bench-") -> Iterator[str]:
    """A new directory, removed at the end."""
    directory = tempfile.mkdtemp(prefix=prefix)
    try:
        yield directory
    finally:
        remove(Path(directory))


def remove(directory: Path, within_s: float = REMOVE_S) -> bool:
    """Try until nothing is left; False if somebody still writes there, and the rest is left to the system."""
    deadline_s = time.monotonic() + within_s
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
        if time.monotonic() > deadline_s:
            return not directory.exists()
        if directory.exists():
            time.sleep(_AGAIN_S)
    return True

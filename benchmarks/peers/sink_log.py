"""The logs that the Flink job's sink writes (`LogSink.java`), read: a header with the number of records, then the records."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

HEADER: Final = np.dtype("<i8")
RECORD: Final = np.dtype([(name, "<i8") for name in ("number", "key", "count", "digest", "left_us")])

Records = npt.NDArray[np.void]


def records_in(directory: Path) -> int:
    return sum(_written(path) for path in directory.glob("*.log"))


def read(directory: Path) -> Records:
    """All records, in the order in which they arrived; one writer follows another."""
    parts = [_records(path) for path in sorted(directory.glob("*.log"))]
    together = np.concatenate([np.zeros(0, RECORD), *parts])
    return together[np.argsort(together["left_us"], kind="stable")]


def _written(path: Path) -> int:
    """A file that is just being made has no header yet."""
    with path.open("rb") as file:
        header = np.frombuffer(file.read(HEADER.itemsize), HEADER)
    return int(header[0]) if len(header) else 0


def _records(path: Path) -> Records:
    """As many as the header says, which is written after each record: what follows is not whole."""
    return np.fromfile(path, RECORD, count=_written(path), offset=HEADER.itemsize)

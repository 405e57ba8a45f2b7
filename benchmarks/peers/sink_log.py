"""The outputs of the Flink job, read: from the logs that its sink writes (`LogSink.java`), or from the records of a topic.

A log is a header with the number of records, then the records. In a topic an output is text (`KafkaEnds.java`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.testing.kafka_load import SEPARATOR

HEADER: Final = np.dtype("<i8")
TEXT: Final = ("number", "key", "count", "digest")  # what a record in a topic has: when it came is noted by its reader
RECORD: Final = np.dtype([(name, "<i8") for name in (*TEXT, "left_us")])

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


def parsed(came: Sequence[tuple[bytes, float]]) -> Records:
    """Records of a topic, each with the time at which it came (seconds since the epoch), in the same order."""
    texts: Any = pa.array([text for text, _ in came], pa.binary()).cast(pa.string())
    parts: Any = pc.split_pattern(texts, SEPARATOR)
    numbers = parts.flatten().cast(pa.int64()).to_numpy().reshape(len(came), len(TEXT))
    records = np.zeros(len(came), RECORD)
    for at, name in enumerate(TEXT):
        records[name] = numbers[:, at]
    records["left_us"] = [round(at_s * 1e6) for _, at_s in came]
    return records

"""A process that puts the rows of a workload into a Kafka topic, each when it is due: an open-loop load.

    python -m godwit.testing.kafka_load BOOTSTRAP TOPIC START_MS OPTIONS_AS_JSON SILENCE_S

It is a process of its own, so that the load does not wait for Python's lock in the process that measures. A record has the
columns of its row as text. Lanes are partitions of the topic. The last row comes SILENCE_S seconds later than it should.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from godwit.workload import Workload
from godwit.workload.numbered_rows import due_us, keys_of, rows_batch

SEPARATOR: Final = "\t"
PAUSE_S: Final = 0.001
AHEAD_S: Final = 0.25  # rows of so long are made at once
PRODUCER: Final = {
    "linger.ms": 0,
    "acks": 1,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.ms": 0,
    "enable.idempotence": False,
    # The broker takes the requests of a connection one by one: with few under way, rows that wait go together.
    "max.in.flight.requests.per.connection": 2,
}

Record = tuple[bytes, int, int]  # value, partition, when it is due in microseconds


def records(workload: Workload, start_ms: int) -> Iterator[Record]:
    """All rows of the workload, in the order in which they are due."""
    step = max(1, int((workload.rows_per_second or 1_000_000) * AHEAD_S))
    for first in range(0, workload.end, step):
        numbers = np.arange(first, min(first + step, workload.end), dtype=np.int64)
        keys = keys_of(workload, numbers)
        lanes = (numbers if workload.lane_by == "row" else keys) % workload.lanes
        due = due_us(workload, numbers, start_ms)
        yield from zip(
            _values(rows_batch(workload, numbers, keys, start_ms)), lanes.tolist(), due.tolist(), strict=True
        )


def _values(rows: pa.RecordBatch) -> list[bytes]:
    """The columns as text; a column of nulls is empty, and times are microseconds."""
    texts = [_text(column) for column in rows.columns]
    joined: Any = pc.call_function("binary_join_element_wise", [*texts, pa.scalar(SEPARATOR)])
    values: list[bytes] = joined.cast(pa.binary()).to_pylist()
    return values


def _text(column: pa.Array[Any]) -> pa.Array[Any]:
    if column.null_count:
        return pa.array([""] * len(column))
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).cast(pa.string())


def feed(producer: Any, topic: str, rows: Iterator[Record]) -> None:
    for value, partition, due_us_ in rows:
        while (early_s := due_us_ / 1e6 - time.time()) > 0:
            producer.poll(0)
            time.sleep(max(early_s, PAUSE_S))
        while True:
            try:
                producer.produce(topic, value=value, partition=partition)
                break
            except BufferError:
                producer.poll(PAUSE_S)
    producer.flush()


def with_silence(rows: Iterable[Record], silence_s: float) -> Iterator[Record]:
    """The last row is due later, and says so."""
    for (value, partition, at_us), more in pairwise(chain(rows, [None])):  # type: ignore[misc]
        late_us = 0 if more else int(silence_s * 1e6)
        yield value.replace(str(at_us).encode(), str(at_us + late_us).encode()), partition, at_us + late_us


def main(bootstrap: str, topic: str, start_ms: str, options: str, silence_s: str) -> None:
    workload = Workload.from_options(json.loads(options))
    rows = records(workload, int(start_ms))
    rows = with_silence(rows, float(silence_s)) if float(silence_s) else rows
    feed(Producer(PRODUCER | {"bootstrap.servers": bootstrap}), topic, rows)


if __name__ == "__main__":
    main(*sys.argv[1:])

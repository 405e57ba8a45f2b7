"""A process that reads a Kafka topic and notes when each record came.

    python -m benchmarks.running.reader BOOTSTRAP TOPIC LANES

It is a process of its own for the same reason as the feeder. The process that measures is also the driver of Spark and of the
flock: while keys move it plans and reports, and the garbage collector was seen to stop it for 400 ms. No record must count as
late for that. Records leave through the standard output; a thread writes them, so that a full pipe does not delay the notes.
"""

from __future__ import annotations

import gc
import queue
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Final

from confluent_kafka import Consumer, TopicPartition

HEAD: Final = struct.Struct("<dI")  # when records came, and how many bytes follow
SIZE: Final = struct.Struct("<I")  # of a record
READ_AT_ONCE: Final = 2_000
WAIT_S: Final = 0.2
CONSUMER: Final = {"group.id": "benchmark", "enable.auto.commit": False, "fetch.wait.max.ms": 20, "fetch.min.bytes": 1}


def packed(at_s: float, records: Sequence[bytes]) -> bytes:
    body = b"".join(SIZE.pack(len(record)) + record for record in records)
    return HEAD.pack(at_s, len(body)) + body


def unpacked(stream: IO[bytes]) -> Iterator[tuple[float, list[bytes]]]:
    """What has come, until the process has ended."""
    while len(head := stream.read(HEAD.size)) == HEAD.size:
        at_s, size = HEAD.unpack(head)
        body, at = stream.read(size), 0
        if len(body) < size:
            return
        records = []
        while at < len(body):
            begin = at + SIZE.size
            at = begin + SIZE.unpack_from(body, at)[0]
            records.append(body[begin:at])
        yield at_s, records


def write(came: queue.SimpleQueue[bytes]) -> None:
    while True:
        sys.stdout.buffer.write(came.get())
        sys.stdout.buffer.flush()


def main(bootstrap: str, topic: str, lanes: str) -> None:
    """Until it is killed. `consume` waits until it has as many records as it was asked for: it is asked for those there are."""
    gc.disable()
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=write, args=(came,), daemon=True).start()
    consumer = Consumer(CONSUMER | {"bootstrap.servers": bootstrap})
    consumer.assign([TopicPartition(topic, lane, 0) for lane in range(int(lanes))])
    while True:
        first = consumer.poll(WAIT_S)
        if first is None:
            continue
        at_s = time.time()
        records = [first, *consumer.consume(READ_AT_ONCE, 0)]
        came.put(packed(at_s, [record.value() or b"" for record in records if record.error() is None]))


if __name__ == "__main__":
    main(*sys.argv[1:])

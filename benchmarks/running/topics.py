"""A load that enters a system through one Kafka topic, and results that leave it through another.

Decides how rows get in and out. In: a process of its own (`feeder`) puts each row into a topic when it is due. Out: another one
(`reader`) reads the second topic and notes when each record came. So the latency of a row is what a reader of the topic sees:
from the time at which the row was due until its result has come. This module must not know which system is between the topics.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.running.reader import CONSUMER, unpacked
from benchmarks.running.record import ROOT
from benchmarks.running.session import broker
from godwit.errors import HostUnavailable
from godwit.workload import Workload

LEAD_S: Final = (
    3.0  # from the start of the feeder until the first row is due: a query of Spark starts in about this time
)
ANSWER_S_MAX: Final = 30.0


class Topics:
    """Two new topics, and the process that puts the rows of a workload into the first. The last row comes `silence_s` later."""

    def __init__(self, workload: Workload, silence_s: float = 0.0) -> None:
        assert workload.rows is not None, "a load that ends"
        assert workload.rows_per_second, "a load that goes by the clock"
        self._workload = workload
        self._silence_s = silence_s
        name = uuid.uuid4().hex[:12]
        self.source, self.target = f"{name}-in", f"{name}-out"
        for topic in (self.source, self.target):
            broker().create(topic, workload.lanes)
        self.start_ms = 0
        self._feeder: subprocess.Popen[bytes] | None = None

    def fill(self) -> None:
        """Fix when row 0 is due, and start the process that sends the rows."""
        self.start_ms = int((time.time() + LEAD_S) * 1_000)
        workload = self._workload
        options = json.dumps({**workload.identity(), "rows": str(workload.rows)})
        command = [sys.executable, "-m", "godwit.testing.kafka_load", broker().bootstrap, self.source]
        self._feeder = subprocess.Popen([*command, str(self.start_ms), options, str(self._silence_s)], cwd=ROOT)

    def filled(self) -> bool:
        """Whether all rows are in the topic."""
        ended = None if self._feeder is None else self._feeder.poll()
        if ended:
            raise HostUnavailable(f"the process that sends the rows ended with {ended}")
        return ended == 0

    @property
    def start_s(self) -> float:
        """When row 0 is due."""
        return self.start_ms / 1_000

    @property
    def end_s(self) -> float:
        """When the last row is due."""
        assert self._workload.rows is not None, "a load that ends"
        return self.start_s + (self._workload.rows - 1) / self._workload.rows_per_second + self._silence_s

    def result_count(self) -> int:
        """How many records the second topic has."""
        consumer = Consumer(CONSUMER | {"bootstrap.servers": broker().bootstrap})
        try:
            lanes = [TopicPartition(self.target, lane) for lane in range(self._workload.lanes)]
            return sum(consumer.get_watermark_offsets(lane, timeout=ANSWER_S_MAX)[1] for lane in lanes)
        finally:
            consumer.close()

    def close(self) -> None:
        if self._feeder is not None:
            self._feeder.kill()
            self._feeder.wait()
        for topic in (self.source, self.target):
            broker().delete(topic)


class Results:
    """The records of a topic so far, in the order in which they came."""

    def __init__(self, topic: str, lanes: int) -> None:
        self._came: list[tuple[bytes, float]] = []
        self._changed = threading.Condition()
        command = [sys.executable, "-m", "benchmarks.running.reader", broker().bootstrap, topic, str(lanes)]
        self._reader = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._reader.stdout is not None, "it is a pipe"
        for at_s, records in unpacked(self._reader.stdout):
            with self._changed:
                self._came += [(record, at_s) for record in records]
                self._changed.notify_all()

    @property
    def count(self) -> int:
        return len(self._came)

    def came(self, first: int = 0) -> list[tuple[bytes, float]]:
        """Each record and when it came (seconds since the epoch), from the record of this number on."""
        with self._changed:
            return self._came[first:]

    def wait(self, rows: int, timeout_s: float) -> bool:
        """Whether so many records have come."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._came) >= rows, timeout_s)

    def close(self) -> None:
        self._reader.kill()
        self._reader.wait()
        self._thread.join()
        assert self._reader.stdout is not None, "it is a pipe"
        self._reader.stdout.close()

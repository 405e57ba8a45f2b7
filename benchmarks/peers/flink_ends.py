"""How rows get into the Flink job and outputs out of it: made and logged by the job itself, or from topic to topic of Kafka.

Decides what starts the load, and when all outputs are out. Either way there are three kinds of rows, known by their number:
first those that fill each key's state (below 0), then the load, then those that look at each key (from the number of rows on).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from confluent_kafka import Producer

from benchmarks.peers import sink_log
from benchmarks.peers.peer_figures import workload_of
from benchmarks.peers.peer_settings import KAFKA, PeerSettings
from benchmarks.peers.run import begin_now, plan, wait_for
from benchmarks.peers.sink_log import Records
from benchmarks.running.session import broker
from benchmarks.running.topics import Results, Topics
from benchmarks.workloads.computation import LANES
from godwit.testing.kafka_load import PRODUCER, SEPARATOR, Record, feed


class Ends(Protocol):
    options: dict[str, str]
    """Of the job."""

    def begin(self) -> int:
        """Lets the load begin; returns when its first row is due (milliseconds since the epoch)."""

    def arrived(self) -> int:
        """How many outputs have come."""

    def records(self) -> Records:
        """They, in the order in which they came."""

    def finish(self, limit_s: float) -> None:
        """The load is over: lets the rows that look at each key follow."""

    def all_out(self, state: str) -> bool:
        """After `finish`: whether all outputs are out of a job in this state."""

    def close(self) -> None: ...


def ends_of(settings: PeerSettings, directory: Path) -> Ends:
    return ThroughKafka(settings, directory) if settings.through == KAFKA else InProcess(settings, directory)


class InProcess:
    """The job makes the rows, and its sink logs its outputs; it ends by itself after its last row."""

    def __init__(self, settings: PeerSettings, directory: Path) -> None:
        self._start_file = directory / "start"
        self._logs = directory / "sink"
        self._logs.mkdir()
        self.options = plan(settings, self._start_file, looks=settings.keys) | {"logs": str(self._logs)}

    def begin(self) -> int:
        return begin_now(self._start_file)

    def arrived(self) -> int:
        return sink_log.records_in(self._logs)

    def records(self) -> Records:
        return sink_log.read(self._logs)

    def finish(self, limit_s: float) -> None:
        pass

    def all_out(self, state: str) -> bool:
        return state == "FINISHED"

    def close(self) -> None:
        pass


class ThroughKafka:
    """The load comes from the process that also feeds our own runs, and the process that reads theirs reads the outputs.

    The other rows are put into the topic here, before and after it. A job that reads from Kafka does not end by itself.
    """

    def __init__(self, settings: PeerSettings, directory: Path) -> None:
        self._settings = settings
        self._topics = Topics(replace(workload_of(settings), payload_bytes=0, lanes=LANES))
        self._send(filling(settings))
        self._results = Results(self._topics.target, LANES)
        topics = {"source": self._topics.source, "target": self._topics.target, "bootstrap": broker().bootstrap}
        self.options = plan(settings, directory / "start", looks=settings.keys) | topics
        self._judged = self._looks = 0

    def begin(self) -> int:
        self._topics.fill()
        return self._topics.start_ms

    def arrived(self) -> int:
        return self._results.count

    def records(self) -> Records:
        return sink_log.parsed(self._results.came())

    def finish(self, limit_s: float) -> None:
        wait_for(self._topics.filled, limit_s, "the whole load is in the topic")
        self._judged = self._results.count
        self._send(looking(self._settings))

    def all_out(self, state: str) -> bool:
        """A key's outputs are in one partition, so what looks at the key comes after all others of the key."""
        new = self._results.came(self._judged)
        self._judged += len(new)
        self._looks += int((sink_log.parsed(new)["number"] >= self._settings.rows).sum())
        return self._looks >= self._settings.keys

    def close(self) -> None:
        self._results.close()
        self._topics.close()

    def _send(self, rows: Iterable[Record]) -> None:
        feed(Producer(PRODUCER | {"bootstrap.servers": broker().bootstrap}), self._topics.source, iter(rows))


def filling(settings: PeerSettings) -> Iterable[Record]:
    return (row(key, key - settings.keys) for key in range(settings.keys))


def looking(settings: PeerSettings) -> Iterable[Record]:
    return (row(key, key + settings.rows) for key in range(settings.keys))


def row(key: int, number: int) -> Record:
    """As the feeder makes those of the load, in the same partition, and due at once."""
    return SEPARATOR.join((str(key), "", str(number), "0")).encode(), key % LANES, 0

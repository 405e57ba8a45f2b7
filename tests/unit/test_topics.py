"""The load of a benchmark in a topic, and the results in another, without a broker."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from benchmarks.running import topics
from benchmarks.running.topics import LEAD_S, Topics
from godwit.errors import HostUnavailable
from godwit.workload import Workload


class FakeBroker:
    bootstrap = "localhost:1"

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}

    def create(self, topic: str, partitions: int) -> None:
        self.topics[topic] = partitions

    def delete(self, topic: str) -> None:
        del self.topics[topic]


class FakeFeeder:
    """A process that has not ended, until `ended` says how."""

    def __init__(self) -> None:
        self.ended: int | None = None

    def poll(self) -> int | None:
        return self.ended

    def kill(self) -> None:
        self.ended = -9

    def wait(self) -> None:
        pass


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    fake = FakeBroker()
    monkeypatch.setattr(topics, "broker", lambda: fake)
    return fake


@pytest.fixture
def feeder(monkeypatch: pytest.MonkeyPatch) -> FakeFeeder:
    fake = FakeFeeder()
    monkeypatch.setattr(topics.subprocess, "Popen", lambda *_, **__: fake)
    monkeypatch.setattr(topics.time, "time", lambda: 100.0)
    return fake


def load(**changed: Any) -> Workload:
    return Workload(rows_per_second=10, keys=5, lanes=3, rows=21, **changed)


def test_both_topics_have_a_partition_for_each_lane_and_go_in_the_end(broker: FakeBroker) -> None:
    made = Topics(load())
    assert broker.topics == {made.source: 3, made.target: 3}
    made.close()
    assert broker.topics == {}


def test_rows_are_due_when_the_feeder_has_had_time_to_start(broker: FakeBroker, feeder: FakeFeeder) -> None:
    made = Topics(load(), silence_s=5.0)
    made.fill()
    assert made.start_s == 100.0 + LEAD_S
    assert made.end_s == made.start_s + 2.0 + 5.0


def test_the_whole_load_is_in_the_topic_when_the_feeder_has_ended(broker: FakeBroker, feeder: FakeFeeder) -> None:
    made = Topics(load())
    assert not made.filled(), "it has not begun"
    made.fill()
    assert not made.filled()
    feeder.ended = 0
    assert made.filled()


def test_a_feeder_that_failed_is_an_error(broker: FakeBroker, feeder: FakeFeeder) -> None:
    made = Topics(load())
    made.fill()
    feeder.ended = 1
    with pytest.raises(HostUnavailable, match="ended with 1"):
        made.filled()


def test_what_was_read_stays_when_the_reader_is_stopped(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that reads is one that notes two records and waits to be killed."""
    program = (
        "import signal, sys; from benchmarks.running.reader import packed; "
        "sys.stdout.buffer.write(packed(1.5, [b'a', b'b'])); sys.stdout.flush(); signal.pause()"
    )
    start = subprocess.Popen
    monkeypatch.setattr(
        topics.subprocess, "Popen", lambda _, **options: start([sys.executable, "-c", program], **options)
    )
    results = topics.Results("some-topic", lanes=1)
    assert results.wait(2, 30.0)
    results.close()
    assert results.came() == [(b"a", 1.5), (b"b", 1.5)]
    assert results.came(first=1) == [(b"b", 1.5)]
    assert results.count == 2

"""Rows for the Flink job and outputs of it, without Flink and without a broker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.peers import flink_ends, prepare
from benchmarks.peers.failed import PeerFailed
from benchmarks.peers.flink_ends import InProcess, ThroughKafka, ends_of, filling, looking
from benchmarks.peers.peer_figures import workload_of
from benchmarks.peers.peer_settings import PeerSettings
from benchmarks.workloads.computation import LANES
from godwit.testing.kafka_load import SEPARATOR, records

SMALL = PeerSettings(keys=3, rate=100, through="kafka", warm_up_s=1, steady_s=1, after_s=1)
START_MS = 1_700_000_000_000


class FakeTopics:
    """What stands for two topics and the feeder. `whole`: whether the whole load is in the first."""

    source, target = "some-in", "some-out"

    def __init__(self, workload: Any) -> None:
        self.workload = workload
        self.start_ms = 0
        self.whole = True

    def fill(self) -> None:
        self.start_ms = START_MS

    def filled(self) -> bool:
        return self.whole


class FakeResults:
    def __init__(self, topic: str, lanes: int) -> None:
        self.records: list[tuple[bytes, float]] = []

    @property
    def count(self) -> int:
        return len(self.records)

    def came(self, first: int = 0) -> Sequence[tuple[bytes, float]]:
        return self.records[first:]


class Stage:
    """An end with its fakes; `sent` are the rows that it put into the topic itself."""

    def __init__(self, settings: PeerSettings) -> None:
        self.sent: list[bytes] = []
        self.ends = ThroughKafka(settings, Path("/tmp"))
        self.topics: Any = self.ends._topics
        self.results: Any = self.ends._results

    def answer(self, *numbers: int) -> None:
        self.results.records += [(f"{number}\t0\t1\t0".encode(), 1.0) for number in numbers]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    sent: list[bytes] = []

    def send(producer: Any, topic: str, rows: Iterator[tuple[bytes, int, int]]) -> None:
        assert topic == FakeTopics.source
        sent.extend(value for value, _, _ in rows)

    monkeypatch.setattr(flink_ends, "Topics", FakeTopics)
    monkeypatch.setattr(flink_ends, "Results", FakeResults)
    monkeypatch.setattr(flink_ends, "Producer", lambda _: None)
    monkeypatch.setattr(flink_ends, "broker", lambda: SimpleNamespace(bootstrap="localhost:1"))
    monkeypatch.setattr(flink_ends, "feed", send)
    made = Stage(SMALL)
    made.sent = sent
    return made


def numbers_of(values: Sequence[bytes]) -> list[int]:
    return [int(value.decode().split(SEPARATOR)[2]) for value in values]


# -- rows ------------------------------------------------------------------------------------------------------------


def test_rows_that_fill_or_look_are_like_those_of_the_feeder_and_in_the_same_partition() -> None:
    load = replace(workload_of(SMALL), payload_bytes=0, lanes=LANES)
    lanes = {value.split(b"\t")[0]: lane for value, lane, _ in records(load, START_MS)}
    assert len(lanes) == SMALL.keys
    columns = {len(value.split(b"\t")) for value, _, _ in records(load, START_MS)}
    for rows in (filling(SMALL), looking(SMALL)):
        for value, lane, _ in rows:
            assert lanes[value.split(b"\t")[0]] == lane
            assert {len(value.split(b"\t"))} == columns


def test_the_kind_of_a_row_shows_in_its_number() -> None:
    assert numbers_of([value for value, _, _ in filling(SMALL)]) == [-3, -2, -1]
    assert numbers_of([value for value, _, _ in looking(SMALL)]) == [SMALL.rows, SMALL.rows + 1, SMALL.rows + 2]


def test_the_job_gets_every_option_that_it_reads(stage: Stage) -> None:
    java = [(prepare.SOURCES / path).read_text() for path in ("shared/Plan.java", "flink/KafkaEnds.java")]
    read = {name for text in java for name in re.findall(r'options\.get\("(\w+)"\)', text)}
    assert stage.ends.options.keys() == read


# -- the course of a run ---------------------------------------------------------------------------------------------


def test_state_is_filled_before_the_load_begins(stage: Stage) -> None:
    assert numbers_of(stage.sent) == [-3, -2, -1]
    assert stage.topics.start_ms == 0
    assert stage.ends.begin() == START_MS
    assert stage.topics.workload.payload_bytes == 0, "the job makes what fills its state: rows are as small as ours"


def test_keys_are_looked_at_when_the_whole_load_is_in_the_topic(stage: Stage) -> None:
    stage.topics.whole = False
    with pytest.raises(PeerFailed, match="the whole load is in the topic"):
        stage.ends.finish(0.0)
    assert numbers_of(stage.sent) == [-3, -2, -1]
    stage.topics.whole = True
    stage.ends.finish(0.0)
    assert numbers_of(stage.sent)[3:] == [SMALL.rows, SMALL.rows + 1, SMALL.rows + 2]


def test_all_is_out_when_every_key_was_looked_at(stage: Stage) -> None:
    stage.answer(-3, -2, -1, 0, 1)
    stage.ends.finish(0.0)
    stage.answer(2, SMALL.rows, SMALL.rows + 2)
    assert not stage.ends.all_out("RUNNING")
    stage.answer(3, 3)
    assert not stage.ends.all_out("RUNNING")
    stage.answer(SMALL.rows + 1)
    assert stage.ends.all_out("RUNNING")
    assert stage.ends.arrived() == len(stage.ends.records()) == 11


def test_a_job_that_makes_its_rows_itself_ends_by_itself(tmp_path: Path) -> None:
    ends = ends_of(replace(SMALL, through="process"), tmp_path)
    assert isinstance(ends, InProcess)
    start_ms = ends.begin()
    assert int(Path(ends.options["start"]).read_text()) == start_ms
    ends.finish(0.0)
    assert [ends.all_out(state) for state in ("RUNNING", "FINISHED")] == [False, True]

"""Peers, as far as it goes without any of them: what is asked of them, what is read from them, what is made of it."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import prepare, sink_log
from benchmarks.peers.failed import PeerFailed
from benchmarks.peers.flink_cluster import conf
from benchmarks.peers.flink_rest import runs_with, with_parallelism
from benchmarks.peers.peer_figures import (
    Load,
    Moments,
    Outputs,
    ballasts,
    batch_by_batch,
    figures,
    keeps_up,
    not_sustained,
    row_by_row,
    workload_of,
)
from benchmarks.peers.peer_settings import PeerSettings
from benchmarks.peers.run import plan, wait_for
from benchmarks.peers.spark_state import figures_in
from benchmarks.running.measures import counted
from benchmarks.running.timeline import timeline
from godwit.errors import DefinitionError
from godwit.testing.latency import Departures, Numbers
from godwit.workload.numbered_rows import keys_of

SMALL = PeerSettings(keys=7, state_bytes=20, rate=100, warm_up_s=1, steady_s=2, after_s=3)
START_MS = 1_000_000


def numbers(*values: int) -> Numbers:
    return np.array(values, np.int64)


def outputs(*rows: tuple[int, int, int]) -> Outputs:
    """(key, count, arrival in us) of each output."""
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return Outputs(columns[0], columns[1], columns[2])


def as_rows(found: Outputs) -> list[tuple[int, int, int]]:
    return list(zip(found.keys.tolist(), found.counts.tolist(), found.left_us.tolist(), strict=True))


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"system": "storm"}, "system must be one of flink, spark"),
        ({"way": "sql"}, "way of flink must be one of savepoint, adaptive"),
        ({"system": "spark", "way": "savepoint"}, "way of spark must be one of sql, pandas"),
        ({"system": "spark", "way": "sql", "backend": "hashmap"}, "backend of spark must be one of rocksdb"),
        ({"through": "files"}, "through of flink must be one of process, kafka"),
        ({"system": "spark", "way": "sql", "through": "kafka"}, "through of spark must be one of process"),
        ({"keys": 0}, "keys of flink must be 1 or more"),
        ({"state_bytes": -1}, "state_bytes"),
        ({"rate": 0}, "rate"),
        ({"skew": -0.1}, "skew"),
        ({"parallelism": 0}, "parallelism of flink must be 1 to 64"),
        ({"parallelism_after": 65}, "parallelism_after"),
        ({"parallelism": 2}, "must differ"),
        ({"checkpoint_s": 0.0}, "checkpoint_s"),
        ({"steady_s": 0.0}, "three numbers over 0"),
        ({"seed": -1}, "seed"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_reason(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        PeerSettings(**wrong).checked()


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"way": "adaptive", "backend": "hashmap"},
        {"through": "kafka"},
        {"system": "spark", "way": "sql"},
        {"system": "spark", "way": "pandas", "parallelism": 2, "parallelism_after": 3},
        {"parallelism": 2, "parallelism_after": 1},
    ],
)
def test_settings_that_make_sense_are_taken(good: dict[str, Any]) -> None:
    assert PeerSettings(**good).checked() == PeerSettings(**good)


def test_a_run_has_rows_until_its_end() -> None:
    """6 s to start, then 1 + 2 + 3 as given, and the 15 s that a restart is given more."""
    assert SMALL.rows == 100 * (6 + 1 + 2 + 3 + 15)


def test_the_plan_names_every_option_that_the_java_side_reads() -> None:
    java = (prepare.SOURCES / "shared" / "Plan.java").read_text()
    given = plan(SMALL, Path("/tmp/start"), looks=7)
    assert given["rows"] == str(SMALL.rows)
    assert {name for name in given if f'options.get("{name}")' in java} == given.keys()
    assert java.count("options.get(") == len(given)


# -- the load --------------------------------------------------------------------------------------------------------


def all_answers(settings: PeerSettings, delay_us: int) -> Outputs:
    """Every row answered so long after it was due, with the count a sequential run gives it."""
    drawn = keys_of(workload_of(settings), np.arange(settings.rows, dtype=np.int64)).tolist()
    seen: Counter[int] = Counter()
    rows = []
    for number, key in enumerate(drawn):
        seen[key] += 1
        rows.append((key, seen[key], START_MS * 1_000 + number * 1_000_000 // settings.rate + delay_us))
    return outputs(*rows)


@pytest.mark.parametrize("skew", [0.0, 1.2])
def test_an_answer_is_as_late_as_its_row_waited(skew: float) -> None:
    settings = replace(SMALL, skew=skew)
    found = Load(settings, START_MS).departures(all_answers(settings, delay_us=12_345))
    assert len(found) == settings.rows
    assert found.latency_ms == pytest.approx(np.full(settings.rows, 12.345), abs=1e-6)


def test_an_answer_that_no_row_can_have_is_not_among_the_departures() -> None:
    load = Load(SMALL, START_MS)
    beyond = outputs((0, int(load.by_key[0]) + 1, 2_000_000_000))
    assert len(load.departures(beyond)) == 0
    assert counted(beyond.keys, beyond.counts, load.by_key)["duplicated"] == 1


@pytest.mark.parametrize(("answered", "at_s", "behind_s"), [(0, 1_000.0, 0.0), (0, 1_002.0, 2.0), (150, 1_002.0, 0.5)])
def test_how_far_behind_is_told_in_seconds_of_load(answered: int, at_s: float, behind_s: float) -> None:
    assert Load(SMALL, START_MS).behind_s(answered, at_s) == pytest.approx(behind_s)


def test_after_its_last_row_no_load_is_due() -> None:
    assert Load(SMALL, START_MS).behind_s(SMALL.rows, 1e9) == 0


def test_ballast_is_the_payload_of_the_row_of_the_same_number() -> None:
    found = dict(ballasts(SMALL))
    assert list(found) == list(range(7))
    assert {len(data) for data in found.values()} == {20}
    assert len(set(found.values())) == 7
    assert found == dict(ballasts(replace(SMALL, skew=1.0, rate=3)))
    assert found != dict(ballasts(replace(SMALL, seed=1)))


def test_state_without_ballast_has_empty_ballast() -> None:
    assert dict(ballasts(replace(SMALL, state_bytes=0))) == dict.fromkeys(range(7), b"")


# -- outputs as answers ----------------------------------------------------------------------------------------------


def test_outputs_that_only_fill_state_are_no_answers() -> None:
    assert as_rows(outputs((1, 0, 5), (1, 1, 6)).of_load()) == [(1, 1, 6)]


def test_row_by_row_the_first_arrival_counts_and_the_last_is_known() -> None:
    found = row_by_row(outputs((1, 1, 10), (2, 1, 11), (1, 2, 12), (1, 2, 20), (1, 3, 21), (1, 2, 30)))
    assert as_rows(found.first) == [(1, 1, 10), (2, 1, 11), (1, 2, 12), (1, 3, 21)]
    assert found.last is not None
    assert as_rows(found.last) == [(1, 1, 10), (2, 1, 11), (1, 3, 21), (1, 2, 30)]
    assert found.re_emitted == 2


def test_row_by_row_keeps_the_order_of_arrival_for_the_check() -> None:
    found = row_by_row(outputs((1, 2, 10), (1, 1, 11)))
    assert counted(found.first.keys, found.first.counts, numbers(0, 2))["out_of_order"] == 1


def test_a_batch_answers_all_rows_since_the_greatest_count_before() -> None:
    found = batch_by_batch(outputs((1, 2, 10), (0, 1, 10), (1, 5, 20)))
    assert as_rows(found.first) == [(1, 1, 10), (1, 2, 10), (0, 1, 10), (1, 3, 20), (1, 4, 20), (1, 5, 20)]
    assert found.last is None
    assert found.re_emitted == 0


def test_a_batch_done_again_answers_only_what_is_new_in_it() -> None:
    found = batch_by_batch(outputs((3, 2, 10), (3, 2, 20), (3, 1, 21), (3, 4, 30)))
    assert as_rows(found.first) == [(3, 1, 10), (3, 2, 10), (3, 3, 30), (3, 4, 30)]
    assert found.re_emitted == 2


def test_no_output_is_no_answer() -> None:
    assert len(row_by_row(outputs()).first) == len(batch_by_batch(outputs()).first) == 0


# -- figures ---------------------------------------------------------------------------------------------------------

STEADY_S = START_MS / 1e3 + SMALL.steady_from_s
MOMENTS = Moments(STEADY_S, STEADY_S + SMALL.steady_s, STEADY_S + SMALL.steady_s + 0.5)


def interrupted() -> Outputs:
    """8 or 12 ms late throughout, but whatever left in the second after the request left at its end."""
    answers = all_answers(SMALL, delay_us=8_000)
    answers.left_us[1::2] += 4_000
    request_us = round(MOMENTS.request_s * 1e6)
    held = (answers.left_us >= request_us) & (answers.left_us < request_us + 1_000_000)
    return Outputs(answers.keys, answers.counts, np.where(held, request_us + 1_000_000, answers.left_us))


def test_the_line_has_the_figures_of_our_own_runs() -> None:
    load = Load(SMALL, START_MS)
    line = figures(SMALL, load, row_by_row(interrupted()), MOMENTS, wrong_state=0)
    assert line["sustained"] is True
    assert line["steady_mean_ms"] == pytest.approx(10)
    assert (line["steady_rows"], line["steady_disruption_ms"]) == (200, 0)
    assert line["disruption_ms"] == pytest.approx(1_000, abs=15)
    assert line["peak_jitter_max_ms"] == pytest.approx(1_000, abs=15)
    assert line["stabilise_s"] == pytest.approx(1.0, abs=0.015)
    assert line["last_arrival_disruption_ms"] == line["disruption_ms"]
    assert line["reconfiguration_s"] == 0.5
    assert (line["rows"], line["load_outlasted_it"]) == (SMALL.rows, True)
    assert [line[name] for name in ("lost", "duplicated", "out_of_order", "re_emitted_rows", "wrong_state")] == [0] * 5
    assert (line["system"], line["way"], line["rate_rows_per_s"]) == ("flink", "savepoint", 100)
    assert json.loads(json.dumps(line)) == line


def test_the_line_tells_what_was_lost_and_what_came_again() -> None:
    answers = interrupted()
    late = MOMENTS.request_s * 1e6 + 5e6
    again = outputs(*as_rows(answers)[:-1], (*as_rows(answers)[600][:2], int(late)))
    line = figures(SMALL, Load(SMALL, START_MS), row_by_row(again), MOMENTS, wrong_state=3)
    assert (line["lost"], line["duplicated"], line["re_emitted_rows"], line["wrong_state"]) == (1, 0, 1, 3)
    assert line["last_arrival_peak_jitter_max_ms"] > line["peak_jitter_max_ms"] + 3_000


def test_answers_of_batches_have_no_last_arrival() -> None:
    line = figures(SMALL, Load(SMALL, START_MS), batch_by_batch(interrupted()), MOMENTS, wrong_state=0)
    assert line["lost"] == 0
    assert line["disruption_ms"] == pytest.approx(1_000, abs=15)
    assert line["last_arrival_disruption_ms"] is None


@pytest.mark.parametrize(("share", "expected"), [(1.0, True), (0.95, True), (0.8, False), (0.0, False)])
def test_a_peer_keeps_up_when_it_answers_what_comes_due(share: float, expected: bool) -> None:
    """Up to the steady part all is answered; in it, only a share of what comes due."""
    answers = all_answers(SMALL, delay_us=0)
    steady_us = round(MOMENTS.steady_s * 1e6)
    slower_us = steady_us + (answers.left_us - steady_us) / max(share, 1e-9)
    slower = Outputs(answers.keys, answers.counts, np.maximum(answers.left_us, slower_us).astype(np.int64))
    assert keeps_up(Load(SMALL, START_MS), slower, MOMENTS) is expected


@pytest.mark.parametrize("rows", [0, 5])
def test_a_rate_that_is_not_carried_gives_a_line_that_says_so(rows: int) -> None:
    steady_us = round(MOMENTS.steady_s * 1e6)
    answers = outputs(*[(0, 1 + at, steady_us + at) for at in range(rows)])
    line = not_sustained(SMALL, Load(SMALL, START_MS), row_by_row(answers), MOMENTS)
    whole = figures(SMALL, Load(SMALL, START_MS), row_by_row(interrupted()), MOMENTS, wrong_state=0)
    assert line["sustained"] is False
    assert line["disruption_ms"] is line["wrong_state"] is line["timeline"] is None
    assert (line["steady_mean_ms"] is None) == (rows == 0)
    missing = {name for name in whole.keys() - line.keys() if not name.startswith("last_arrival_")}
    assert missing == {"load_outlasted_it"}


# -- timeline --------------------------------------------------------------------------------------------------------


def test_a_timeline_has_rows_and_latency_by_step() -> None:
    left = np.array([99.75, 99.85, 99.95, 99.96, 100.15, 100.3])
    waits = np.array([9.0, 1.0, 2.0, 4.0, 100.0, 7.0])
    found = timeline(Departures.of(left, left - waits / 1e3), 100.0, -0.2, 0.3)
    assert found == {
        "step_ms": 100,
        "from_s": -0.2,
        "rows": [1, 2, 0, 1, 0],
        "p50_ms": [1.0, 3.0, None, 100.0, None],
        "p99_ms": [1.0, 3.98, None, 100.0, None],
        "max_ms": [1.0, 4.0, None, 100.0, None],
    }


def test_a_timeline_without_rows_is_empty_steps() -> None:
    found = timeline(Departures.of(np.zeros(0), np.zeros(0)), 100.0, -1.0, 1.0)
    assert found["rows"] == [0] * 20
    assert found["p50_ms"] == found["max_ms"] == [None] * 20


# -- what the sink of the Flink job writes ---------------------------------------------------------------------------


def write_log(path: Path, header: int, *records: tuple[int, int, int, int, int]) -> None:
    room = np.zeros(3, sink_log.RECORD)
    path.write_bytes(
        np.array([header], "<i8").tobytes() + np.array(list(records), sink_log.RECORD).tobytes() + room.tobytes()
    )


def test_logs_are_read_as_far_as_they_are_written_in_order_of_arrival(tmp_path: Path) -> None:
    write_log(tmp_path / "100-a.log", 2, (0, 5, 1, 0, 100), (1, 6, 1, 0, 130), (2, 7, 1, 0, 140))
    write_log(tmp_path / "120-b.log", 1, (9, 8, 4, 77, 120))
    (tmp_path / "150-c.log").write_bytes(b"")
    found = sink_log.read(tmp_path)
    assert sink_log.records_in(tmp_path) == 3
    assert found["number"].tolist() == [0, 9, 1]
    assert found[1].tolist() == (9, 8, 4, 77, 120)


def test_without_logs_there_is_nothing(tmp_path: Path) -> None:
    assert sink_log.records_in(tmp_path) == len(sink_log.read(tmp_path)) == 0


def test_a_record_is_as_long_as_the_sink_writes_it() -> None:
    java = (prepare.SOURCES / "flink" / "LogSink.java").read_text()
    assert f"RECORD_BYTES = {sink_log.RECORD.itemsize};" in java
    assert f"HEADER_BYTES = {sink_log.HEADER.itemsize};" in java


def test_outputs_in_a_topic_are_read_as_those_in_logs_are() -> None:
    found = sink_log.parsed([(b"-3\t4\t0\t0", 1.5), (b"7\t4\t1\t4294967295", 2.000001)])
    assert found.dtype == sink_log.RECORD
    assert [each.tolist() for each in found] == [(-3, 4, 0, 0, 1_500_000), (7, 4, 1, 4294967295, 2_000_001)]


def test_an_empty_topic_has_no_outputs() -> None:
    assert len(sink_log.parsed([])) == 0


# -- Flink -----------------------------------------------------------------------------------------------------------


def job(state: str, *vertices: tuple[str, str, int]) -> dict[str, Any]:
    return {
        "state": state,
        "vertices": [{"id": f"id-{n}", "name": n, "status": s, "parallelism": p} for n, s, p in vertices],
    }


@pytest.mark.parametrize(
    ("found", "runs"),
    [
        (job("RUNNING", ("plan", "RUNNING", 1), ("count", "RUNNING", 2)), True),
        (job("RUNNING", ("plan", "RUNNING", 1), ("count", "RUNNING", 1)), False),
        (job("RUNNING", ("plan", "RUNNING", 2)), False),
        (job("RUNNING", ("plan", "DEPLOYING", 1), ("count", "RUNNING", 2)), False),
        (job("RESTARTING", ("plan", "RUNNING", 1), ("count", "RUNNING", 2)), False),
    ],
)
def test_a_job_runs_when_all_tasks_do_with_the_parallelism_asked_for(found: dict[str, Any], runs: bool) -> None:
    assert runs_with(found, "count", 2) is runs


def test_only_the_named_operator_gets_other_bounds() -> None:
    one = {"parallelism": {"lowerBound": 1, "upperBound": 1}}
    asked = with_parallelism(
        {"id-plan": one, "id-count": one}, job("RUNNING", ("plan", "RUNNING", 1), ("count", "RUNNING", 1)), "count", 3
    )
    assert asked == {"id-plan": one, "id-count": {"parallelism": {"lowerBound": 1, "upperBound": 3}}}


def test_flink_has_slots_for_the_greater_parallelism_before_it_is_asked_for() -> None:
    grows, shrinks = SMALL, replace(SMALL, parallelism=3, parallelism_after=1)
    slots = [conf(each, Path("/tmp"), 1, 2)["taskmanager.numberOfTaskSlots"] for each in (grows, shrinks)]
    assert slots == ["2", "3"]


def test_each_backend_and_way_has_its_own_settings() -> None:
    rocksdb = conf(SMALL, Path("/tmp"), 1, 2)
    hashmap = conf(replace(SMALL, backend="hashmap", way="adaptive"), Path("/tmp"), 1, 2)
    assert rocksdb["execution.checkpointing.incremental"] == "true"
    assert "execution.checkpointing.incremental" not in hashmap
    assert hashmap["taskmanager.memory.managed.fraction"] == "0.0"
    assert hashmap["jobmanager.scheduler"] == "adaptive"
    assert "jobmanager.scheduler" not in rocksdb
    assert rocksdb["execution.checkpointing.interval"] == "5000ms"


# -- Spark's process -------------------------------------------------------------------------------------------------


class Kept:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def phase(self, text: str) -> None:
        self.said.append(text)

    def rows(self, seen: int, total: int) -> None:
        self.said.append((seen, total))


def test_lines_of_the_process_are_progress_or_figures_and_others_are_passed_over() -> None:
    watch = Kept()
    lines = ['{"phase": "steady"}', '{"rows": [3, 9]}', "WARN something", "[1, 2]", '{"rows": "many"}', "null"]
    assert [figures_in(line + "\n", watch) for line in lines] == [None] * 6
    assert watch.said == ["steady", (3, 9)]
    assert figures_in('{"figures": {"lost": 0}}\n', watch) == {"lost": 0}


# -- waiting ---------------------------------------------------------------------------------------------------------


def test_what_does_not_come_true_is_named() -> None:
    with pytest.raises(PeerFailed, match="the job runs"):
        wait_for(lambda: False, 0.0, "the job runs", every_s=0.0)


def test_what_is_true_is_not_waited_for() -> None:
    wait_for(lambda: True, 0.0, "the job runs")


# -- preparing -------------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def set_up(system: str) -> None:
    prepare.HOME.mkdir()
    with zipfile.ZipFile(prepare.jar(system), "w") as packed:
        packed.writestr(prepare.DIGEST, prepare._digest_of(prepare._sources(system)))


def install_flink(*jars: str) -> Path:
    """The folder of Flink's jars, with these in it."""
    folder = prepare.HOME / "flink/lib/python3.11/site-packages/pyflink/lib"
    folder.mkdir(parents=True)
    for jar in jars:
        (folder / jar).touch()
    prepare._stamp().touch()
    return folder


def test_without_the_kafka_connector_flink_is_not_set_up(elsewhere: Path) -> None:
    set_up("flink")
    folder = install_flink()
    with pytest.raises(DefinitionError, match="make peers"):
        prepare.require("flink")
    (folder / prepare._connector().name).touch()
    prepare.require("flink")


def test_a_connector_takes_the_place_of_an_older_one(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install_flink("flink-dist-2.3.0.jar", "flink-sql-connector-kafka-3.0.0-1.17.jar")
    newest = elsewhere / "fetched.jar"
    newest.write_bytes(b"newest")
    monkeypatch.setattr(prepare, "fetched", lambda _: [newest])
    watch = Kept()
    prepare._add_connector(watch)
    prepare._add_connector(watch)
    assert len(watch.said) == 1, "it is fetched once"
    assert {path.name for path in folder.iterdir()} == {"flink-dist-2.3.0.jar", prepare._connector().name}
    assert prepare._connector().read_bytes() == b"newest"


@pytest.mark.parametrize("system", ["flink", "spark"])
def test_a_peer_that_is_not_set_up_says_how_to_do_it(system: str, elsewhere: Path) -> None:
    with pytest.raises(DefinitionError, match="make peers"):
        prepare.require(system)


def test_a_jar_made_from_other_sources_is_not_taken(elsewhere: Path) -> None:
    prepare.HOME.mkdir()
    with zipfile.ZipFile(prepare.jar("spark"), "w") as packed:
        packed.writestr(prepare.DIGEST, "of older sources")
    with pytest.raises(DefinitionError, match="not as this version needs it"):
        prepare.require("spark")


def test_without_a_compiler_a_jdk_is_asked_for(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(elsewhere))
    monkeypatch.setenv("PATH", str(elsewhere))
    with pytest.raises(DefinitionError, match="Install a JDK"):
        prepare.prepare(Kept())
    assert not prepare.HOME.exists()


def test_without_java_one_is_asked_for(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(elsewhere))
    with pytest.raises(DefinitionError, match="no Java found"):
        prepare.java_home()


def test_outside_a_checkout_the_pins_are_missed(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = elsewhere / "java" / "bin" / "javac"
    compiler.parent.mkdir(parents=True)
    compiler.touch()
    monkeypatch.setenv("JAVA_HOME", str(elsewhere / "java"))
    with pytest.raises(DefinitionError, match="top of a checkout"):
        prepare.prepare(Kept())


def test_pins_are_versions_of_all_packages_and_nothing_else() -> None:
    lines = (Path(__file__).parents[2] / prepare.CONSTRAINTS).read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins.keys() == set(prepare.PACKAGES)

"""Costs, failures and throughput: which runs there are, who measures them, and what is computed from what they saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.campaign import campaign, cases
from benchmarks.campaign.cases import Case
from benchmarks.command import main
from benchmarks.experiments import failure, stopwatch, throughput
from benchmarks.experiments.costs import RestSettings, ports_of
from benchmarks.experiments.failure import FailureSettings
from benchmarks.experiments.phases import spans_of
from benchmarks.experiments.stopwatch import Stopwatch, parts_of
from benchmarks.experiments.throughput import Batch, ThroughputSettings
from benchmarks.inside import row_timers
from benchmarks.peers import PeerSettings
from benchmarks.running.settings import ALL_PROTOCOLS, Settings
from godwit.errors import DefinitionError
from godwit.state.keys import KeyCodec


def named(experiment: str, name: str) -> Case:
    return next(case for case in cases.cases([experiment]) if case.name == name)


# -- cases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experiment", "name", "settings"),
    [
        ("E1", "key-count/live", Settings),
        ("E1", "key-count/spark-sql", PeerSettings),
        ("E3", "moving/pause", Settings),
        ("E3", "rest/no-support", RestSettings),
        ("E5", "killed/storage", FailureSettings),
        ("E6", "hosts=3/native", ThroughputSettings),
        ("E6", "batch_rows=5000/sql", ThroughputSettings),
    ],
)
def test_each_kind_of_run_has_settings_of_its_own(experiment: str, name: str, settings: type) -> None:
    assert type(campaign.settings_of(named(experiment, name))) is settings


def test_a_session_has_slots_for_hosts_and_lanes() -> None:
    assert campaign.slots(named("E6", "hosts=3/native")) == 3 + 2 + 1
    assert campaign.slots(named("E6", "profile=5000/native")) == 1 + 1 + 1
    assert campaign.slots(named("E5", "killed/storage")) == 2 + 2 + 1


def test_only_peers_bring_their_own_session() -> None:
    assert campaign.trigger_of(named("E1", "key-count/flink-adaptive")) is None
    assert campaign.trigger_of(named("E1", "real-time/flink-adaptive")) is None
    assert campaign.trigger_of(named("E1", "real-time/live")) == "real-time"
    # Spark's own operators are measured in our session.
    assert campaign.trigger_of(named("E6", "batch_rows=5000/sql")) == "micro-batch"


def test_runs_that_do_not_compare_are_told_apart() -> None:
    assert named("E3", "moving/live").labels()["workload"] == "key-count"
    assert named("E3", "rest/at-rest").labels()["workload"] == "key-count, nothing moves"
    assert named("E6", "profile=5000/native").labels()["workload"] == "key-count, one lane and one host"
    assert named("E5", "killed/storage").labels()["workload"] == "word-count"


def test_phases_are_the_same_for_all_under_a_load_unless_a_case_has_its_own() -> None:
    for case in cases.cases([]):
        under_load = case.kind in ("migration", "failure", "peer")
        lasting = {"steady_s"} if case.kind in cases.IN_REAL_TIME else set()
        assert (cases.PHASES.keys() & case.settings.keys()) == (cases.PHASES.keys() if under_load else lasting)
    live = named("E1", "key-count/live").settings
    assert {name: live[name] for name in cases.PHASES} == cases.PHASES


def test_all_protocols_are_taken_apart_by_phase() -> None:
    assert {case.way for case in cases.cases(["E3"], only="moving")} == set(ALL_PROTOCOLS)


def test_state_that_is_lost_with_a_host_goes_up_to_400_mb() -> None:
    sizes = [case.at for case in cases.cases(["E5"], only="state_total_bytes,storage")]
    assert sizes == [1_000_000, 100_000_000, 400_000_000]
    for case in cases.cases(["E5"], only="state_total_bytes"):
        assert case.settings["keys"] * case.settings["state_bytes"] == case.at


def test_a_way_to_recover_is_added_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "WAYS", ("storage",))
    before = cases.cases(["E5"])
    assert {case.way for case in before} == {"storage"}
    monkeypatch.setattr(cases, "WAYS", ("storage", "standby", "parallel"))
    added = [case for case in cases.cases(["E5"]) if case not in before]
    assert {case.way for case in added} == {"standby", "parallel"}
    hosts = {case.way: campaign.settings_of(case).hosts for case in added}
    assert hosts == {"standby": 2, "parallel": 3}, "the keys of one are spread over two others"


def test_how_long_a_run_takes_goes_by_its_load() -> None:
    live, restart = named("E1", "key-count/live"), named("E1", "key-count/restart")
    phases_s = sum(cases.PHASES.values())
    assert phases_s < live.about_s < restart.about_s, "a restart is watched for longer"
    assert named("E6", "hosts=3/native").about_s < live.about_s


def test_points_of_a_sweep_are_not_repeated() -> None:
    assert named("E2", "rate=2000/live").runs(5) == 1
    assert named("E1", "key-count/live").runs(5) == 5
    assert named("E4", "zipf/push").runs(1) == 1


def test_the_quick_runs_have_something_of_every_measurement() -> None:
    quick = cases.cases([], quick=True)
    assert {case.kind for case in quick} == {"migration", "peer", "rest", "failure", "throughput"}
    for case in quick:
        campaign.settings_of(case)


@pytest.mark.parametrize(
    "settings",
    [
        RestSettings(way="sleeping"),  # type: ignore[arg-type]
        RestSettings(hosts=1),
        FailureSettings(way="prayer"),  # type: ignore[arg-type]
        FailureSettings(rate=0),
        FailureSettings(segment_bytes=0),
        ThroughputSettings(way="flink"),  # type: ignore[arg-type]
        ThroughputSettings(batches=0),
        ThroughputSettings(profile=True),
        ThroughputSettings(way="sql", hosts=1, lanes=1, profile=True),
    ],
)
def test_what_makes_no_sense_is_refused(settings: Any) -> None:
    with pytest.raises(DefinitionError):
        settings.checked()


# -- the phases of a migration ---------------------------------------------------------------------------------------


def report(*moves: list[list[Any]]) -> dict[str, Any]:
    told = [["queued", 0.0], ["stopping", 0.01], ["moving", 0.5], ["done", 2.0]]
    return {"phases": told, "moves": [{"phases": notes} for notes in moves]}


def test_what_was_done_while_keys_moved_is_told_in_place_of_that_phase() -> None:
    notes = [["indexed", 100.0], ["copied", 700.0], ["released", 900.0], ["served", 1_000.0], ["ended", 1_400.0]]
    assert spans_of(report(notes)) == [
        ["queued", 0.0, 0.01],
        ["stopping", 0.01, 0.5],
        ["finding the keys", 0.5, 0.6],
        ["copying", 0.6, 1.2],
        ["handing over", 1.2, 1.4],
        ["taking over", 1.4, 1.5],
        ["tidying up", 1.5, 1.9],
    ]


def test_the_same_thing_done_again_and_again_is_one_phase() -> None:
    found = spans_of(report([["copied", 10.0], ["copied", 20.0], ["served", 30.0], ["copied", 40.0]]))
    assert found[2:] == [["copying", 0.5, 0.52], ["taking over", 0.52, 0.53], ["copying", 0.53, 0.54]]


def test_moves_that_go_side_by_side_all_have_their_phases() -> None:
    found = spans_of(report([["copied", 100.0]], [["copied", 300.0]]))
    assert found[2:] == [["copying", 0.5, 0.6], ["copying", 0.5, 0.8]]


def test_what_was_done_before_the_request_is_not_part_of_it() -> None:
    notes = [["indexed", 10.0], ["copied", 900.0], ["released", 60_000.0], ["served", 60_200.0], ["ended", 60_300.0]]
    assert spans_of(report(notes))[2:] == [
        ["handing over", 0.5, 1.7],
        ["taking over", 1.7, 1.9],
        ["tidying up", 1.9, 2.0],
    ]


def test_a_request_that_moved_nothing_has_only_its_own_phases() -> None:
    assert spans_of({"phases": [["queued", 0.0], ["refused", 0.2]], "moves": []}) == [["queued", 0.0, 0.2]]


def test_without_notes_of_an_origin_the_phase_stays_whole() -> None:
    assert spans_of(report([]))[-1] == ["moving", 0.5, 2.0]
    assert spans_of(report())[-1] == ["moving", 0.5, 2.0]


# -- a host is killed ------------------------------------------------------------------------------------------------


def rows(*told: tuple[int, int, int]) -> pa.Table:
    """Key, when it was due and when it left, in milliseconds."""
    keys, due, left = zip(*told, strict=True)
    micros = pa.array([ms * 1000 for ms in due], pa.timestamp("us", tz="UTC"))
    return pa.table({"key": pa.array(keys, pa.int64()), "due": micros, "left": pa.array(left, pa.int64())})


def test_recovery_ends_with_the_first_row_that_came_after_the_kill() -> None:
    found = rows((1, 900, 1_010), (2, 1_100, 1_200), (1, 1_300, 2_900), (1, 1_200, 2_500), (1, 950, 2_400))
    mine = np.array(found.column("key")) == 1
    assert failure.recovery_s(found, mine, killed_s=1.0) == 1.5, "not a row from before, nor one of another host"


def test_keys_that_never_came_back_have_no_recovery_time() -> None:
    found = rows((1, 900, 950), (2, 1_100, 1_200))
    assert failure.recovery_s(found, np.array([True, False]), killed_s=1.0) is None


@pytest.mark.parametrize(("values", "kind"), [([1, 2, 2, 77], pa.int64()), (["w1", "w2", "w2", "w77"], pa.string())])
def test_whose_key_a_row_has_goes_by_its_group(values: list[Any], kind: pa.DataType) -> None:
    codec = KeyCodec(pa.schema([("key", kind)]))
    group = codec.route_hash((values[1],)) % 1024
    column = pa.chunked_array([pa.array(values[:2], kind), pa.array(values[2:], kind)])
    assert failure.owned(column, frozenset([group])).tolist() == [False, True, True, False]


# -- throughput --------------------------------------------------------------------------------------------------------


def test_rows_a_second_are_over_all_batches_and_the_time_of_a_batch_is_the_median() -> None:
    batches = [Batch(6, 100.0, 60.0), Batch(7, 300.0, 200.0), Batch(8, 100.0, 60.0)]
    found = throughput.rates(batches, 1_000)
    assert (found["rows_per_s"], found["batch_ms"], found["work_ms"]) == (6_000, 100.0, 60.0)


def test_batches_that_spark_has_committed_are_counted(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    for name in ("0", "1", "10", ".10.crc"):
        (tmp_path / "commits" / name).touch()
    assert throughput.committed(tmp_path) == 11


# -- where the time of a row goes ------------------------------------------------------------------------------------


HOST_S = {"gate": 0.001, "processor": 0.004, "state": 0.003, "changelog": 0.002, "answer": 0.001}
ROUTER_S = {"router": 0.005, "hosts": 0.015, "input": 0.5}


def test_the_parts_of_a_batch_add_up_to_its_time() -> None:
    parts = parts_of(100.0, 70.0, ROUTER_S, HOST_S)
    assert sum(parts.values()) == pytest.approx(100.0)
    assert parts["Spark: planning and commits"] == pytest.approx(30.0)
    assert parts["Spark: tasks and rows"] == pytest.approx(50.0), "waiting for rows is Spark's time, not the router's"
    assert parts["wire"] == pytest.approx(4.0), "what asking a host took beyond the host's own time"


def test_the_cost_of_a_row_is_over_the_batches_that_count(tmp_path: Path) -> None:
    lines = {side: str(tmp_path / side) for side in ("router", "host")}
    for batch, factor in ((0, 50.0), (1, 1.0), (2, 3.0)):
        stopwatch.note(lines["router"], batch, {name: each * factor for name, each in ROUTER_S.items()})
        stopwatch.note(lines["host"], batch, {name: each * factor for name, each in HOST_S.items()})
    found = throughput.row_costs([Batch(1, 100.0, 70.0), Batch(2, 100.0, 90.0)], 1_000, lines)
    assert sum(found.values()) == pytest.approx(100.0)
    assert found["processor"] == pytest.approx((4.0 + 12.0) / 2)


def test_a_part_does_not_have_the_time_of_the_parts_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now_s[0])
    watch = Stopwatch()

    def inner() -> None:
        now_s[0] += 2.0

    def outer() -> None:
        now_s[0] += 1.0
        watch.timed(inner, "inner")()
        watch.timed(inner, "inner")()

    watch.timed(outer, "outer")()
    assert watch.taken() == {"outer": 1.0, "inner": 4.0}
    assert watch.taken() == {}, "each question begins anew"


def test_time_in_which_items_are_used_is_not_that_of_making_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now_s[0])
    watch = Stopwatch()

    def made() -> Any:
        for item in range(3):
            now_s[0] += 1.0
            yield item

    for _ in watch.drawn(made(), "making"):
        now_s[0] += 10.0
    assert watch.taken() == {"making": 3.0}


def test_timers_are_taken_out_again_even_after_an_error() -> None:
    class Place:
        def work(self) -> str:
            raise KeyError("work")

    before, watch = Place.__dict__["work"], Stopwatch()
    with pytest.raises(KeyError), watch.around([(Place, "work", "part")]):
        Place().work()
    assert Place.__dict__["work"] is before
    assert "part" in watch.taken(), "what failed took its time, too"


def test_every_place_that_is_timed_exists() -> None:
    for owner, name, part in (*row_timers.HOST, *row_timers.ROUTER_PLACES):
        assert callable(vars(owner)[name])
        assert part in (*stopwatch.HOST_PARTS, stopwatch.ASKING)


def test_a_line_is_json_that_says_its_batch(tmp_path: Path) -> None:
    path = str(tmp_path / "lines")
    stopwatch.note(path, 3, {"gate": 0.5})
    stopwatch.note(path, 3, {"gate": 0.25})
    assert [json.loads(line)[0] for line in Path(path).read_text().splitlines()] == [3, 3]
    assert stopwatch.noted(path) == {3: {"gate": 0.25}}, "the last try of a batch counts"


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_list_of_runs_says_how_long_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "E3", "--only", "rest/,-real-time", "--runs", "3", "--list"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == ["E3 rest/no-support", "E3 rest/at-rest", "E3 rest/standby"]
    assert "9 runs, about 2 minutes" in told.err


def test_help_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    out = capsys.readouterr().out
    assert all(f"\n  {name}  " in out for name in cases.EXPERIMENTS)


# -- at rest ---------------------------------------------------------------------------------------------------------


def test_hosts_listen_on_both_ports_of_their_address() -> None:
    hosts = {"host-0": {"address": "127.0.0.1:4000/4001"}, "host-1": {"address": "[::1]:5000/5001"}}
    assert ports_of(hosts) == {4_000, 4_001, 5_000, 5_001}

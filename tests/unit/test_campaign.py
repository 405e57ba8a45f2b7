"""Which runs make up the evaluation, and which of them are left to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.campaign import campaign
from benchmarks.campaign.cases import AIMED_RATE, EXPERIMENTS, KAFKA, STATE_MAX_BYTES, Case, cases
from benchmarks.command import main
from benchmarks.running.settings import ALL_PROTOCOLS, Settings
from benchmarks.running.triggers import MICRO_BATCH, REAL_TIME
from godwit.errors import DefinitionError


def test_every_run_can_be_told_from_the_others_and_makes_sense() -> None:
    found = cases([])
    assert len({(case.experiment, case.name) for case in found}) == len(found)
    for case in found:
        settings = campaign.settings_of(case)
        assert (settings.protocol if case.kind == "migration" else settings.way) == case.way
        assert (case.swept is None) == (case.at is None)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_can_be_run_alone(name: str) -> None:
    assert {case.experiment for case in cases([name])} == {name}


def test_runs_are_chosen_by_a_text_in_their_name() -> None:
    assert [case.name for case in cases(["E2"], only="state_bytes=1024/")] == [
        "state_bytes=1024/live",
        "state_bytes=1024/push",
        "real-time/state_bytes=1024/live",
        "real-time/state_bytes=1024/push",
    ]
    assert [case.at for case in cases(["E2"], only="hosts,live,-real-time")] == [1, 2, 4, 6]
    assert [case.name for case in cases(["E2"], "state_bytes=1024,-push,-real-time")] == ["state_bytes=1024/live"]


# -- in real time ----------------------------------------------------------------------------------------------------

IN_REAL_TIME = ("E2", "E3", "E4", "E6")


def test_runs_in_real_time_are_chosen_by_their_name_and_take_an_hour_at_most() -> None:
    chosen = cases(IN_REAL_TIME, only="real-time/")
    assert {case.experiment for case in chosen} == set(IN_REAL_TIME)
    assert {case.trigger for case in chosen} == {REAL_TIME}
    assert {case.trigger for case in cases(IN_REAL_TIME, only="-real-time/")} == {MICRO_BATCH}
    assert sum(case.about_s for case in chosen) <= 3_600


def test_a_line_of_a_run_in_real_time_cannot_be_taken_for_one_between_micro_batches() -> None:
    for case in cases([]):
        labels = case.labels()
        in_real_time = case.name.startswith("real-time/")
        assert (labels["trigger"] == REAL_TIME) == in_real_time
        assert (labels["through"] == KAFKA) == (case.trigger == REAL_TIME)


@pytest.mark.parametrize(
    ("parameter", "points"),
    [("state_bytes", [1 << 10, 64 << 10, 1 << 20, 10 << 20]), ("keys_moved", [100, 1_000, 10_000, 100_000])],
)
def test_sweeps_in_real_time_have_the_points_and_the_load_of_the_aims(parameter: str, points: list[int]) -> None:
    swept = cases(["E2"], only=f"real-time/{parameter},live")
    assert [case.at for case in swept] == points
    assert {case.settings["rate"] for case in swept} == {AIMED_RATE}
    for case in swept:
        settings = campaign.settings_of(case)
        assert isinstance(settings, Settings)
        assert settings.keys * settings.state_bytes <= STATE_MAX_BYTES


def test_orders_and_protocols_are_the_same_with_both_triggers() -> None:
    for experiment, part in (("E4", ""), ("E3", "moving")):
        between = [case.name for case in cases([experiment], only=f"{part},-real-time")]
        assert [case.name for case in cases([experiment], only=f"real-time/{part}")] == [
            f"real-time/{n}" for n in between
        ]


def test_ours_passes_rows_at_the_rates_of_the_copy() -> None:
    rates = {way: [case.at for case in cases(["E6"], only=f"real-time/rate=,/{way}")] for way in ("copy", "native")}
    assert rates["copy"] == rates["native"] == [500, 2_000, 8_000, 16_000, 30_000]


def test_a_batch_ends_while_rows_are_measured() -> None:
    for case in cases(["E6"], only="real-time/batch_s"):
        assert case.settings["steady_s"] > case.settings["batch_s"] == case.at


def test_list_says_how_long_each_part_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "E2", "E6", "--only", "real-time/", "--list"]) == 0
    out, err = capsys.readouterr()
    assert "E6 real-time/silence=60/native" in out
    assert [line.split(": ")[0] for line in err.splitlines()[:-1]] == ["E2, real-time", "E6, real-time"]
    assert all(line.endswith("minutes") for line in err.splitlines())


def test_larger_state_per_key_means_fewer_keys_not_more_memory() -> None:
    sizes = [case.settings for case in cases(["E2"], only="state_bytes")]
    assert max(one["keys"] * one["state_bytes"] for one in sizes) <= 400 << 20
    assert max(one["state_bytes"] for one in sizes) == 100 << 20
    assert min(one["keys"] for one in sizes) >= 4


def test_a_line_tells_which_workload_was_run() -> None:
    told = {case.name: case.labels()["workload"] for case in cases([])}
    assert told["key-count/live"] == told["key-count/flink-adaptive"] == told["real-time/live"] == "key-count"
    assert told["traffic/live"] == "traffic"
    assert told["window_rows=1000/live"] == "count-window"


def test_protocols_are_compared_on_both_workloads() -> None:
    names = {case.name for case in cases(["E1"])}
    assert {f"{workload}/{way}" for workload in ("key-count", "traffic") for way in ALL_PROTOCOLS} <= names


def test_a_system_that_carries_less_has_a_run_named_after_its_rate() -> None:
    [pandas] = cases(["E1"], only="pandas")
    assert pandas.name.endswith(f"-at-{pandas.settings['rate']}")


@pytest.mark.parametrize(
    ("name", "trigger"),
    [
        ("real-time/live", "real-time"),
        ("real-time/flink-adaptive", "real-time"),
        ("real-time/flink-savepoint", "real-time"),
        ("key-count/live", "micro-batch"),
        ("key-count/flink-adaptive", "micro-batch"),
        ("key-count/spark-sql", "micro-batch"),
    ],
)
def test_other_systems_stand_beside_the_runs_of_ours_that_get_their_rows_as_they_do(name: str, trigger: str) -> None:
    [case] = [case for case in cases(["E1"]) if case.name == name]
    assert case.labels()["trigger"] == trigger


def test_all_that_go_from_kafka_to_kafka_have_the_same_load() -> None:
    settings = [campaign.settings_of(case) for case in cases(["E1"], only="real-time/")]
    shared = ("rate", "keys", "state_bytes", "skew", "warm_up_s", "steady_s", "after_s")
    assert len(settings) == len(ALL_PROTOCOLS) + 2
    assert len({tuple(getattr(one, name) for name in shared) for one in settings}) == 1


def test_one_host_can_only_scale_out() -> None:
    [one] = cases(["E2"], only="hosts=1/,live")
    settings = campaign.settings_of(one)
    assert (settings.hosts, settings.hosts_after) == (1, 2)


@pytest.mark.parametrize(("names", "only"), [(["E9"], ""), (["E1"], "no such run")])
def test_what_does_not_exist_is_refused(names: list[str], only: str) -> None:
    with pytest.raises(DefinitionError, match=r"E9|no such run"):
        cases(names, only)


def test_quick_is_a_few_short_runs() -> None:
    assert 3 <= len(cases([], quick=True)) <= 8
    assert all(case.settings["keys"] <= 1_000 for case in cases([], quick=True))


# -- going on --------------------------------------------------------------------------------------------------------


def line(case: Case, repeat: int, **changed: object) -> str:
    told = {"run": "20260101T000000Z", "commit": campaign.commit(), "machine": campaign.machine(), "repeat": repeat}
    return json.dumps(told | case.labels() | changed)


def test_what_was_measured_here_is_not_measured_again(tmp_path: Path) -> None:
    kept, (first, second, *_) = tmp_path / "kept.jsonl", cases(["E1"])
    kept.write_text("\n".join([line(first, 0), line(first, 1), line(second, 0, commit="another")]) + "\n")
    run, done = campaign.finished(kept)
    assert run == "20260101T000000Z", "the same run goes on"
    assert done == {(first.experiment, first.name, 0), (first.experiment, first.name, 1)}


def test_another_commit_begins_anew(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text(line(cases(["E1"])[0], 0, commit="another") + "\n")
    run, done = campaign.finished(kept)
    assert run > "20260101T000000Z"
    assert not done


def test_nothing_kept_is_nothing_done(tmp_path: Path) -> None:
    assert campaign.finished(tmp_path / "none.jsonl")[1] == set()


def test_the_time_left_goes_by_what_runs_took() -> None:
    clock = campaign.Clock(3)
    assert clock.text() == "1/3"
    clock.finished_one()
    assert clock.text() == "2/3, 0 min left"

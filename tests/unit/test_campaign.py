"""Which runs make up the evaluation, and which of them are left to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from godwit.bench import campaign
from godwit.bench.cases import EXPERIMENTS, GODWIT, Case, cases
from godwit.bench.peers import PeerSettings
from godwit.errors import DefinitionError


def test_every_run_can_be_told_from_the_others_and_makes_sense() -> None:
    found = cases([])
    assert len({(case.experiment, case.name) for case in found}) == len(found)
    for case in found:
        if case.system == GODWIT:
            assert campaign.settings_of(case).protocol == case.way
        else:
            assert PeerSettings(**case.settings).checked().way == case.way
        assert (case.swept is None) == (case.at is None)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_can_be_run_alone(name: str) -> None:
    assert {case.experiment for case in cases([name])} == {name}


def test_runs_are_chosen_by_a_text_in_their_name() -> None:
    assert [case.name for case in cases(["E2"], only="state_bytes=1024/")] == [
        "state_bytes=1024/live",
        "state_bytes=1024/push",
    ]
    assert [case.at for case in cases(["E2"], only="hosts,live")] == [2, 4, 6]


def test_larger_state_per_key_means_fewer_keys_not_more_memory() -> None:
    sizes = [case.settings for case in cases(["E2"], only="state_bytes")]
    assert max(one["keys"] * one["state_bytes"] for one in sizes) <= 400 << 20
    assert min(one["keys"] for one in sizes) >= 8


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
    return json.dumps(told | case.told() | changed)


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
    assert clock.told() == "1/3"
    clock.finished_one()
    assert clock.told() == "2/3, 0 min left"

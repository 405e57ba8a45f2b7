"""The aims in real time: met or missed only by figures for all that they are about."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.report import headline, html, markdown
from benchmarks.report.real_time_aims import real_time_aims
from tests.unit.evaluation_lines import evaluation, line

JITTERS = {"live": 25.0, "push": 28.0, "fetch": 31.0, "pause": 32.0, "restart": 40.0}


def run(way: str = "live", experiment: str = "E1", system: str = "godwit", **told: Any) -> dict[str, Any]:
    """As good as all aims want it."""
    good = {
        "rate_rows_per_s": 4_000,
        "through": "kafka",
        "peak_jitter_p99_ms": JITTERS.get(way, 400.0),
        "disruption_ms": 0.0,
        "stall_p99_ms": 5.0,
        "stall_max_ms": 9.0,
        "stabilise_s": 0.1 if way == "push" else 1.0,
    }
    return line(random.Random(1), experiment, system, way, told.pop("repeat", 0), **good | told)


def side_by_side() -> list[dict[str, Any]]:
    peer = run("adaptive", system="flink")
    return [*(run(way) for way in JITTERS), peer]


def swept(parameter: str, *points: float, **told: Any) -> list[dict[str, Any]]:
    return [run(experiment="E2", swept=parameter, at=at, **told) for at in points]


def everything() -> list[dict[str, Any]]:
    quiet = run("native", "E6", p50_ms=10.0, after_silence_ms=19.0)
    sweeps = [*swept("state_bytes", 1_024, 10 << 20), *swept("keys_moved", 100, 100_000)]
    return [*side_by_side(), *sweeps, quiet]


def met(lines: list[dict[str, Any]], words: str) -> bool | None:
    (found,) = (aim for aim in real_time_aims(evaluation(lines)) if words in aim.text)
    assert (found.measured == "not measured") <= (found.met is None)
    return found.met


def test_nothing_measured_meets_nothing() -> None:
    assert {aim.met for aim in real_time_aims(evaluation([]))} == {None}
    assert {aim.measured for aim in real_time_aims(evaluation([]))} == {"not measured"}


def test_figures_as_good_as_wanted_meet_all() -> None:
    assert {aim.text for aim in real_time_aims(evaluation(everything())) if not aim.met} == set()


@pytest.mark.parametrize(
    ("way", "worse", "words"),
    [
        ("live", {"peak_jitter_p99_ms": 30.1}, "live: peak jitter (p99) at most 30 ms"),
        ("live", {"disruption_ms": 10.1}, "live: disruption at most 10 ms"),
        ("live", {"stall_max_ms": 10.1}, "live: stall max at most 10 ms"),
        ("push", {"stall_p99_ms": 15.1}, "push: stall p99 at most 15 ms"),
        ("push", {"stabilise_s": 0.56}, "push: at least 45 % less time"),
        ("push", {"stabilise_s": None, "disruption_ms": 5.0}, "push: at least 45 % less time"),
        ("push", {"peak_jitter_p99_ms": 31.5}, "live < push < fetch < pause < restart"),
        ("restart", {"peak_jitter_p99_ms": 40.1}, "10 times below"),
        ("live", {"lost": 1}, "exact in every run"),
        ("live", {"outcome": "aborted"}, "exact in every run"),
    ],
)
def test_a_figure_that_is_not_good_enough_misses_the_aim(way: str, worse: dict[str, Any], words: str) -> None:
    lines = everything()
    assert met(lines, words)
    changed = [each | worse if (each["experiment"], each["way"]) == ("E1", way) else each for each in lines]
    assert met(changed, words) is False


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ("restart", "live < push < fetch < pause < restart"),
        ("restart", "10 times below"),
        ("adaptive", "10 times below"),
        ("pause", "push: at least 45 % less time"),
        ("live", "live: stall max"),
        ("native", "after a minute of silence"),
    ],
)
def test_an_aim_is_not_measured_while_a_part_of_it_is_missing(without: str, words: str) -> None:
    assert met([each for each in everything() if each["way"] != without], words) is None


@pytest.mark.parametrize("told", [{"rate_rows_per_s": 1_500}, {"state_bytes": 64 << 10}, {"keys": 1_000}])
def test_runs_under_another_load_do_not_count(told: dict[str, Any]) -> None:
    assert met([each | told for each in everything()], "live: disruption") is None


@pytest.mark.parametrize("told", [{"run": "20261101T000000Z"}, {"rate_rows_per_s": 10_000}, {"through": None}])
def test_a_peer_of_another_campaign_or_another_load_does_not_count(told: dict[str, Any]) -> None:
    lines = [each | told if each["system"] == "flink" else each for each in everything()]
    assert met(lines, "10 times below") is None


def test_latency_that_was_never_away_cannot_be_back_sooner() -> None:
    lines = [each | {"stabilise_s": 0.0} for each in side_by_side()]
    assert met(lines, "push: at least 45 % less time") is None


@pytest.mark.parametrize(
    ("told", "expected"),
    [({"peak_jitter_p99_ms": 59.9}, True), ({"peak_jitter_p99_ms": 60.1}, False), ({"stall_rows": 0}, None)],
)
def test_a_sweep_is_within_twice_the_limits_at_every_point(told: dict[str, Any], expected: bool | None) -> None:
    points = [*swept("keys_moved", 100, 10_000), *swept("keys_moved", 100_000, **told)]
    assert met(points, "by keys moved") is expected


def test_a_sweep_without_its_ends_proves_nothing_but_can_miss() -> None:
    assert met(swept("state_bytes", 1_024, 1 << 20), "by state per key") is None
    assert met(swept("state_bytes", 1_024, disruption_ms=99.0), "by state per key") is False


def test_a_sweep_between_micro_batches_does_not_count() -> None:
    lines = [each | {"trigger": "micro-batch"} for each in swept("keys_moved", 100, 100_000)]
    assert met(lines, "by keys moved") is None


def test_the_pages_have_the_table_and_the_headlines_a_line() -> None:
    found = evaluation(everything())
    assert "| live: disruption at most 10 ms | 0 ms | yes |" in markdown(found)
    assert '<section id="real-time">' in html(found)
    (told,) = (each for each in headline(found) if each.startswith("in real time"))
    assert "live 25, push 28," in told
    assert "11 of 11 aims met, 0 not measured" in told
    assert not any(each.startswith("in real time") for each in headline(evaluation(swept("keys_moved", 100))))


def test_published_figures_stand_in_the_table_of_peak_jitter_where_they_are() -> None:
    told = markdown(
        evaluation([*swept("keys_moved", 100, 1_000, 100_000), *swept("state_bytes", 1 << 10, 100 << 20, 128 << 20)])
    )
    assert "| live, Falcon (published) | 43 | 60 | – |" in told
    assert "| live, Falcon (published) | – | 42-52 | – |" in told
    assert "at 10 KB, 100 MB; round trip of 80 ms." in told


def test_series_that_did_not_go_through_kafka_say_so() -> None:
    words = "These runs did not go through Kafka"
    assert words not in markdown(evaluation(everything()))
    assert markdown(evaluation([run(through=None)])).count(words) == 1
    assert words not in markdown(evaluation([run(trigger="micro-batch", through=None)]))


def test_a_move_that_outlasted_its_load_is_told() -> None:
    lines = [run(repeat=repeat, load_outlasted_it=repeat > 0) for repeat in range(3)]
    assert "live: in 1 of 3 runs the load ended before the move did." in markdown(evaluation(lines))
    assert "the load ended" not in markdown(evaluation(lines[1:]))

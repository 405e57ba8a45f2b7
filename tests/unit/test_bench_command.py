"""The command of the benchmarks without a query: what it explains, what it refuses, which settings its flags give."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.campaign.aims import aims, sound
from benchmarks.command import elasticity_flags, main, migration_flags, parser
from benchmarks.experiments.migration import sideways
from benchmarks.running.measures import quartile_rate, rate_of
from benchmarks.running.settings import ALL_PROTOCOLS, REAL_TIME_RATE, Settings
from godwit.errors import DefinitionError

FIGURES = (
    "disruption_ms peak_jitter_p99_ms peak_jitter_max_ms stabilise_s reconfiguration_s keys_moved bytes_moved"
    " rows_sent_twice bytes_sent_twice extra_memory_bytes_max cpu_s wrong_outputs lost duplicated out_of_order wrong_state"
).split()


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and complaints."""
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def settings(*flags: str) -> list[Settings]:
    return migration_flags.settings(parser().parse_args(["migration", *flags]))


# -- explaining ------------------------------------------------------------------------------------------------------


def test_help_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answer(capsys, "--help")
    assert code == 0
    assert all(
        f"\n    {word}" in out
        for word in "migration run report peers elasticity rest key-count recovery compare docs".split()
    )


@pytest.mark.parametrize("figure", FIGURES)
def test_help_of_the_benchmark_explains_the_figure(figure: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert figure in answer(capsys, "migration", "--help")[1]


# -- refusing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "required: BENCHMARK"),
        ("fly", "invalid choice: 'fly'"),
        ("migration --wat", "unrecognized arguments: --wat"),
        ("migration --keys many", "invalid int value: 'many'"),
        ("migration --keys 0", "--keys must be 1 or more"),
        ("migration --protocol teleport", "--protocol must be one of"),
        ("migration --protocol live,teleport", "--protocol must be one of"),
        ("migration --workload taxi", "invalid choice: 'taxi'"),
        ("migration --window-rows 0", "--window-rows must be 1 or more"),
        ("migration --order random", "invalid choice: 'random'"),
        ("migration --fraction 1.5", "--fraction must be between 0 and 1"),
        ("migration --fraction 0.6", "at most 0.50 of the keys"),
        ("migration --hosts 1", "at most 0.00 of the keys"),
        ("migration --protocol standby --target scale-out", "Use --target sideways"),
        ("migration --load 0", "--load must be over 0"),
        ("migration --rate 0", "--rate must be 1 or more"),
        ("migration --trigger often", "invalid choice: 'often'"),
        ("migration --trigger real-time --trigger-ms 5", "--trigger-ms is of micro-batches"),
        ("migration --seconds 1/2", "not three numbers"),
        ("migration --seconds 1/0/2", "--seconds must be three numbers over 0"),
        ("migration --runs 0", "--runs must be 1 or more"),
        ("elasticity week", "there is no part 'week'"),
        ("elasticity --runs 0", "--runs must be 1 or more"),
        ("elasticity --seconds 1", "--seconds 30 or more"),
        ("migration --json /no/such/directory/x", "No such file or directory"),
        ("key-count --ways magic", "there is no way 'magic'"),
        ("key-count --batches 0", "--batches, --small and --large must be 1 or more"),
        ("key-count --keys 0", "--keys, --repeats, --batches and --large must be 1 or more"),
        ("rest --batches 0", "--batches must be 1 or more"),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


# -- flags -----------------------------------------------------------------------------------------------------------


def test_flags_have_the_defaults_of_the_settings() -> None:
    assert settings() == [Settings()]


def test_a_workload_is_chosen_with_the_size_of_its_windows() -> None:
    found = settings("--workload", "count-window", "--window-rows", "7")[0]
    assert (found.workload, found.window_rows, found.state_bytes) == ("count-window", 7, 0)
    assert settings("--workload", "word-count", "--window-s", "2", "--state-bytes", "9")[0] == Settings(
        workload="word-count", window_s=2.0, state_bytes=9, skew=1.0
    )


def test_several_protocols_are_measured_in_the_order_given() -> None:
    assert [each.protocol for each in settings("--protocol", "push, live,push")] == ["push", "live"]


def test_all_protocols_but_standby_can_scale_out() -> None:
    assert [each.protocol for each in settings("--protocol", "all")] == list(ALL_PROTOCOLS)
    out = [each.protocol for each in settings("--protocol", "all", "--target", "scale-out")]
    assert out == [name for name in ALL_PROTOCOLS if name != "standby"]


def test_seconds_are_warm_up_steady_and_after() -> None:
    found = settings("--seconds", "1/2.5/3")[0]
    assert (found.warm_up_s, found.steady_s, found.after_s) == (1, 2.5, 3)


def test_quick_is_smaller_but_keeps_a_rate_that_was_given() -> None:
    quick = settings("--quick", "--rate", "77")[0]
    assert quick.keys < Settings().keys
    assert quick.rate == 77
    assert settings("--quick")[0].rate is not None, "measuring capacity takes longer than a quick run"


def test_in_real_time_there_is_a_rate_that_one_row_at_a_time_can_keep() -> None:
    found = settings("--trigger", "real-time")[0]
    assert (found.trigger, found.rate) == ("real-time", REAL_TIME_RATE)
    assert settings("--trigger", "real-time", "--rate", "77")[0].rate == 77
    assert settings("--trigger", "real-time", "--quick")[0].rate == REAL_TIME_RATE


def test_only_real_time_has_a_rate_of_its_own() -> None:
    assert (settings()[0].trigger, settings()[0].rate) == ("micro-batch", None)
    with pytest.raises(DefinitionError, match="no capacity to take a share of"):
        Settings(trigger="real-time").checked()


def test_the_load_outlasts_a_restart() -> None:
    live, restart = settings("--protocol", "live,restart")
    assert restart.watched_s > live.watched_s == live.after_s


@pytest.mark.parametrize(("fraction", "hosts_after"), [("0.5", 4), ("0.34", 3), ("0.1", 3), ("0.9", 20)])
def test_scaling_out_takes_as_many_hosts_as_the_fraction_needs(fraction: str, hosts_after: int) -> None:
    assert settings("--target", "scale-out", "--fraction", fraction)[0].hosts_after == hosts_after


@pytest.mark.parametrize(("fraction", "hosts"), [(0.5, 2), (0.25, 2), (0.6, 3), (0.75, 4), (0.001, 5)])
def test_sideways_takes_alike_from_all_hosts_but_the_last(fraction: float, hosts: int) -> None:
    chosen = sideways(fraction, hosts, 1024)
    assert len(chosen) == len(set(chosen)) == round(1024 * fraction)
    taken = [sum(group * hosts // 1024 == host for group in chosen) for host in range(hosts)]
    assert taken[-1] == 0
    assert max(taken[:-1]) - min(taken[:-1]) <= 1


def test_a_rate_leaves_out_the_warm_up() -> None:
    batches = [(100, 1.0), (100, 9.0), (100, 10.0), (300, 12.0)]
    assert rate_of(batches, warm_up=2) == pytest.approx(400 / 3)


def test_a_batch_that_was_held_up_does_not_count_among_the_quicker_ones() -> None:
    batches = [(100, 1.0), (100, 2.0), (100, 3.0), (100, 4.0), (100, 5.0), (100, 60.0)]
    assert quartile_rate(batches, warm_up=1) == pytest.approx(100)
    assert rate_of(batches, warm_up=1) < 10


# -- aims ------------------------------------------------------------------------------------------------------------


def line(protocol: str, **figures: Any) -> dict[str, Any]:
    exactness = dict.fromkeys(("lost", "duplicated", "out_of_order", "wrong_state"), 0)
    rest = {
        "stall_p99_ms": 1.0,
        "stall_max_ms": 2.0,
        "disruption_ms": 0.0,
        "stabilise_s": 1.0,
        "outcome": "done",
        "stall_rows": 9,
    }
    return {"protocol": protocol, "peak_jitter_p99_ms": 10.0, **rest, **exactness, **figures}


def met(lines: list[dict[str, Any]], text: str) -> bool | None:
    return next(aim.met for aim in aims(lines) if text in aim.text)


def test_a_run_is_sound_if_it_is_done_and_exact() -> None:
    assert sound(line("live"))
    assert not sound(line("live", out_of_order=1))
    assert not sound(line("live", outcome="incomplete"))


def test_an_aim_is_met_missed_or_open() -> None:
    assert met([line("live")], "live: stall p99") is True
    assert met([line("live", stall_p99_ms=5.1)], "live: stall p99") is False
    assert met([line("push")], "live: stall p99") is None
    assert met([line("live", wrong_state=1)], "exact") is False


def test_aims_are_about_the_median_of_the_runs() -> None:
    assert met([line("live", stall_p99_ms=value) for value in (1.0, 2.0, 50.0)], "live: stall p99") is True


def test_an_aim_about_stall_is_open_where_no_row_was_recorded_as_waiting() -> None:
    silent = line("live", stall_rows=0, stall_p99_ms=0.0, stall_max_ms=0.0)
    assert met([silent], "live: stall p99") is None
    assert met([silent, line("live", stall_p99_ms=90.0)], "live: stall p99") is False, (
        "the silent run does not dilute it"
    )
    assert met([silent], "live: disruption") is True


def test_push_is_compared_with_pause() -> None:
    assert met([line("push", stabilise_s=0.5), line("pause", stabilise_s=1.0)], "45 %") is True
    assert met([line("push", stabilise_s=0.6), line("pause", stabilise_s=1.0)], "45 %") is False
    assert met([line("push", stabilise_s=0.0), line("pause", stabilise_s=0.0)], "45 %") is None


def test_jitter_rises_from_live_to_restart() -> None:
    jitters = {"live": 1.0, "push": 2.0, "fetch": 3.0, "pause": 4.0, "restart": 100.0}
    lines = [line(protocol, peak_jitter_p99_ms=value) for protocol, value in jitters.items()]
    assert met(lines, "live < push") is True
    assert met(lines, "100 times") is True
    assert met(lines[:-1], "live < push") is None
    assert met([*lines[1:], line("live", peak_jitter_p99_ms=2.5)], "live < push") is False


def test_settings_that_make_no_sense_are_refused_without_the_command() -> None:
    with pytest.raises(DefinitionError, match="--state-bytes"):
        Settings(state_bytes=-1).checked()


# -- elasticity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "figure",
    "decided_s served_s relieved_s target_held host_seconds cost_ratio applied_share lost duplicated out_of_order".split(),
)
def test_help_of_elasticity_explains_the_figure(figure: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert figure in answer(capsys, "elasticity", "--help")[1]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            {"benchmark": "measuring", "ratio": {"median": 0.991, "min": 0.98, "max": 1.01}},
            "throughput with measuring / without: 0.991 (0.980 to 1.010)",
        ),
        (
            {"benchmark": "relief", "warm": 1, "decided_s": 3.2, "served_s": 4.1, "relieved_s": 9},
            "relief with 1 warm: decided after 3.2 s, served after 4.1 s, within the target after 9 s",
        ),
        (
            {"benchmark": "day", "target_held": 0.995, "cost_ratio": 1.2, "actions": 11},
            "day: target held in 99.5 % of windows, 1.20 of an oracle's host-seconds, 11 actions",
        ),
        (
            {
                "benchmark": "hot-key",
                "share": 90,
                "row_us": 5.0,
                "merged_rows_per_s": {"median": 600_000},
                "rows_per_s": {"median": 200_000},
                "ratio": {"median": 3.0, "min": 2.9, "max": 3.2},
            },
            "90 % of the rows are of one key, 5 us a row: 200,000 rows/s, merged 600,000, ratio 3.00 (2.90 to 3.20)",
        ),
    ],
    ids=lambda value: value["benchmark"] if isinstance(value, dict) else "",
)
def test_summary_of_elasticity_has_the_figures_looked_for_first(line: dict[str, Any], told: str) -> None:
    assert elasticity_flags.summary(line) == told

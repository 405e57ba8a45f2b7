"""What was aimed at in real time, and whether the figures come to it: medians over the runs of the evaluation.

All runs go from Kafka to Kafka. An aim is met or missed only if there are figures for all that it is about; otherwise it is not
measured. Runs with another load than the aims speak of do not count, nor does a peer that was measured in another campaign, or
not from Kafka to Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from benchmarks.campaign.aims import BY_JITTER, Aim
from benchmarks.campaign.cases import AIMED_RATE
from benchmarks.peers.peer_settings import KAFKA
from benchmarks.plots.blocks import Cell, Section, Table, Words
from benchmarks.plots.captions import JITTER
from benchmarks.plots.evaluation import Evaluation, Panel, Run, Spread, Way, over
from benchmarks.plots.figures import MISSING, figure, number, point, swept, value_text
from benchmarks.running.triggers import REAL_TIME
from godwit.workload import KEY_COUNT

KEYS: Final = 10_000
STATE_BYTES: Final = 1_024
LIMITS_MS: Final = {JITTER: 30.0, "disruption_ms": 10.0, "stall_max_ms": 10.0}  # of `live`
FLAT: Final = 2.0  # along a sweep, each within so many times its limit
SWEPT: Final = {"state_bytes": (STATE_BYTES, 10 << 20), "keys_moved": (100, 100_000)}
PUSH_STALL_MS: Final = 15.0
PUSH_LESS: Final = 0.45
PEER: Final = Way("flink", "adaptive")
TIMES_BELOW_PEER: Final = 10.0
SILENCE_TIMES: Final = 2.0
SETTING: Final = f"{AIMED_RATE:,} rows/s, {KEYS:,} keys of {STATE_BYTES // 1024} KB, half of them moved"
WORDS: Final = {True: "yes", False: "no", None: MISSING}
WHAT: Final = (
    f"Aims for runs from Kafka to Kafka with Spark's real-time trigger, at {SETTING}, unless an aim says otherwise."
    " Medians over runs. An aim without figures for all that it is about is not measured."
)


def real_time_aims(evaluation: Evaluation) -> list[Aim]:
    side_by_side = aimed(evaluation)
    return [
        _exact(evaluation),
        *_of_live(side_by_side),
        *(_flat(evaluation, parameter) for parameter in SWEPT),
        _push_stall(side_by_side),
        _push_time(side_by_side),
        _order(side_by_side),
        _below_peer(side_by_side),
        _after_silence(evaluation),
    ]


def aims_section(evaluation: Evaluation) -> Section:
    head = ["aim", "measured", "met"]
    rows = [[Cell(aim.text), Cell(aim.measured), Cell(WORDS[aim.met])] for aim in real_time_aims(evaluation)]
    return Section("real-time", "Real time: aims", [Words(WHAT), Table(head, rows)])


def aimed(evaluation: Evaluation) -> Panel | None:
    """Protocols side by side in real time, and peers beside them: the runs that the aims speak of; None if there are none."""
    for panel in evaluation.panels("E1"):
        if (panel.workload, panel.trigger, panel.swept) == (KEY_COUNT, REAL_TIME, ""):
            runs = [run for run in panel.runs if run.number("rate_rows_per_s") == AIMED_RATE and _through_kafka(run)]
            ours = [run for run in runs if run.way.system == "godwit" and _as_aimed(run)]
            campaigns = {run.text("run") for run in ours}
            peers = [run for run in runs if run.way.system != "godwit" and run.text("run") in campaigns]
            return panel.only([*ours, *peers]) if ours else None
    return None


def _through_kafka(run: Run) -> bool:
    return run.text("through") == KAFKA


def _as_aimed(run: Run) -> bool:
    return (run.number("keys"), run.number("state_bytes")) == (KEYS, STATE_BYTES)


def _exact(evaluation: Evaluation) -> Aim:
    """Of a run that ended otherwise than it should, nothing is known to be right."""
    ours = [run for run in evaluation.runs if run.way.system == "godwit" and _through_kafka(run)]
    runs = [run for run in ours if run.wrong is not None]
    bad = sum(bool(run.fault) for run in runs)
    text = "exact in every run: nothing lost, duplicated, out of order or wrong"
    return Aim(text, f"{bad} of {len(runs)} runs are not exact", not bad) if runs else Aim(text, MISSING, None)


# -- half of the keys moved ----------------------------------------------------------------------------------------------


def _of_live(panel: Panel | None) -> Iterator[Aim]:
    for name, most in LIMITS_MS.items():
        yield _at_most(panel, "live", name, most)


def _push_stall(panel: Panel | None) -> Aim:
    return _at_most(panel, "push", "stall_p99_ms", PUSH_STALL_MS)


def _at_most(panel: Panel | None, way: str, name: str, most: float) -> Aim:
    value = _of(panel, way, name)
    text = f"{way}: {figure(name).heading} at most {most:g} ms"
    return Aim(text, _shown(value, name), None if value is None else value.median <= most)


def _push_time(panel: Panel | None) -> Aim:
    push, pause = (_of(panel, way, "stabilise_s") for way in ("push", "pause"))
    text = f"push: at least {100 * PUSH_LESS:g} % less time until latency is back than pause"
    if push is None or pause is None:
        return Aim(text, MISSING, None)
    measured = f"push {value_text(push, 'stabilise_s')} s, pause {value_text(pause, 'stabilise_s')} s"
    # Latency that was never away cannot be back sooner.
    return Aim(text, measured, push.median <= (1 - PUSH_LESS) * pause.median if pause.median else None)


def _order(panel: Panel | None) -> Aim:
    jitters = [_of(panel, way, JITTER) for way in BY_JITTER]
    known = [value.median for value in jitters if value is not None]
    rising = all(low < high for low, high in pairwise(known))
    measured = ", ".join(f"{way} {_shown(value, JITTER)}" for way, value in zip(BY_JITTER, jitters, strict=True))
    text = f"peak jitter: {' < '.join(BY_JITTER)}"
    return Aim(text, measured if known else MISSING, rising if len(known) == len(jitters) else None)


def _below_peer(panel: Panel | None) -> Aim:
    text = f"peak jitter of each of these at least {TIMES_BELOW_PEER:g} times below {PEER.label} in the same campaign"
    theirs = over(panel.of(PEER), JITTER) if panel is not None else None
    jitters = {way: value.median for way in BY_JITTER if (value := _of(panel, way, JITTER)) is not None}
    if theirs is None or not jitters:
        return Aim(text, MISSING, None)
    times = {way: theirs.median / max(value, 0.1) for way, value in jitters.items()}
    measured = ", ".join(f"{way} {number(each)} times" for way, each in times.items())
    least = min(times.values()) >= TIMES_BELOW_PEER
    # One that is not far enough below is enough to miss it; to meet it, all must have been measured.
    met = least if len(times) == len(BY_JITTER) or not least else None
    return Aim(text, f"{measured} ({PEER.label} {_shown(theirs, JITTER)})", met)


def _of(panel: Panel | None, way: str, name: str) -> Spread | None:
    return over(panel.of(Way("godwit", way)), name) if panel is not None else None


def _shown(value: Spread | None, name: str) -> str:
    return MISSING if value is None else f"{value_text(value, name)} {figure(name).unit}"


# -- sweeps, and nothing moved -----------------------------------------------------------------------------------------


def _flat(evaluation: Evaluation, parameter: str) -> Aim:
    """Each figure at each point; one that is missing leaves the aim open, unless another already misses it."""
    first, last = SWEPT[parameter]
    limits = ", ".join(f"{figure(name).heading} {FLAT * most:g}" for name, most in LIMITS_MS.items())
    ends = f"{point(parameter, first)} to {point(parameter, last)}"
    text = f"live: the same within {FLAT:g} times by {swept(parameter)}, {ends}: at most {limits} ms"
    by_point = {at: runs for at, runs in _points(evaluation, parameter) if first <= at <= last}
    if not by_point:
        return Aim(text, MISSING, None)
    worst = [(name, FLAT * most, [over(runs, name) for runs in by_point.values()]) for name, most in LIMITS_MS.items()]
    measured = "; ".join(f"{figure(name).heading} {_line(values)}" for name, _, values in worst)
    within = [value.median <= most for _, most, values in worst for value in values if value is not None]
    whole = {first, last} <= by_point.keys() and all(None not in values for _, _, values in worst)
    at = ", ".join(point(parameter, each) for each in by_point)
    return Aim(text, f"at {at}: {measured} ms", all(within) if whole or not all(within) else None)


def _points(evaluation: Evaluation, parameter: str) -> Iterator[tuple[float, Sequence[Run]]]:
    live = Way("godwit", "live")
    for panel in evaluation.panels("E2"):
        if (panel.workload, panel.trigger, panel.swept) == (KEY_COUNT, REAL_TIME, parameter):
            for at in panel.points:
                runs = [run for run in panel.of(live, at) if run.number("rate_rows_per_s") == AIMED_RATE]
                if runs:
                    yield at, runs


def _line(values: Sequence[Spread | None]) -> str:
    return " / ".join("–" if value is None else number(value.median) for value in values)


def _after_silence(evaluation: Evaluation) -> Aim:
    text = f"one row after a minute of silence within {SILENCE_TIMES:g} times the p50 before"
    native = [run for run in evaluation.runs if run.way == Way("godwit", "native")]
    pairs = [(run.figure("after_silence_ms"), run.figure("p50_ms")) for run in native]
    times = Spread.of(after / before for after, before in pairs if after is not None and before)
    if times is None:
        return Aim(text, MISSING, None)
    took = over(native, "after_silence_ms")
    return Aim(text, f"{_shown(took, 'after_silence_ms')}, {number(times.median)} times", times.median <= SILENCE_TIMES)

"""The few lines that the README quotes: what holds over all runs, and the medians that matter most, for and against us."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.plots.captions import JITTER
from benchmarks.plots.evaluation import Evaluation, Panel, Run, Way, over
from benchmarks.plots.figures import MISSING, figure, number, value_text
from benchmarks.report.comparison import our_share
from benchmarks.report.real_time_aims import SETTING, aimed, real_time_aims
from benchmarks.report.summary import exact_words
from benchmarks.running.triggers import REAL_TIME

LIVE = Way("godwit", "live")


def headline(evaluation: Evaluation) -> list[str]:
    """Three to six lines after a full evaluation; what was not measured has none."""
    if not evaluation.runs:
        return [MISSING]
    return [
        _exact(evaluation),
        *_protocols(evaluation),
        *_peers(evaluation),
        *_real_time(evaluation),
        *_recovery(evaluation),
        *_rows(evaluation),
    ]


def _exact(evaluation: Evaluation) -> str:
    wrong = sum(bool(run.fault) for run in evaluation.runs)
    return f"**not exact in {wrong} runs**: {exact_words(evaluation.runs)}" if wrong else exact_words(evaluation.runs)


def _protocols(evaluation: Evaluation) -> Iterator[str]:
    panel = _panel(evaluation)
    if panel is None:
        return
    ours = [way for way in panel.ways if way.system == LIVE.system and over(panel.of(way), JITTER) is not None]
    medians = ", ".join(_median(panel, way) for way in ours)
    share = our_share(panel, LIVE, JITTER)
    part = "" if share is None else f" (live: {number(100 * share)} % of a restart)"
    yield f"half of the keys moved, {_named(panel)}, peak jitter: {medians} ms{part}"


def _peers(evaluation: Evaluation) -> Iterator[str]:
    panel = _panel(evaluation)
    peers = [way for way in panel.ways if way.system != LIVE.system] if panel else []
    known = [way for way in peers if panel and over(panel.of(way), JITTER) is not None]
    if panel is not None and known:
        medians = ", ".join(_median(panel, way) for way in known)
        yield f"the same by other means, peak jitter: {medians} ms; {_median(panel, LIVE)} ms here"


def _real_time(evaluation: Evaluation) -> Iterator[str]:
    """From Kafka to Kafka, at the load that the aims speak of; how many of the aims are met is said with it."""
    panel = aimed(evaluation)
    ways = [way for way in panel.ways if over(panel.of(way), JITTER) is not None] if panel is not None else []
    if panel is None or not ways:
        return
    medians = ", ".join(_median(panel, way) for way in ways)
    found = [aim.met for aim in real_time_aims(evaluation)]
    aims = f"{found.count(True)} of {len(found)} aims met, {found.count(None)} not measured"
    yield f"in real time, Kafka to Kafka, {SETTING}, peak jitter: {medians} ms ({aims})"


def _recovery(evaluation: Evaluation) -> Iterator[str]:
    """Where nothing is swept if that was measured: medians over different points say little."""
    every = [run for run in evaluation.runs if run.text("experiment") == "E5" and run.figure("recovery_s") is not None]
    runs = [run for run in every if not run.text("swept")] or every
    if runs:
        yield f"a killed host's keys are served again after: {_by_way(runs, 'recovery_s')} s"


def _rows(evaluation: Evaluation) -> Iterator[str]:
    """The best point of each way: what it can do, not what it does when the point does not suit it."""
    best: dict[Way, float] = {}
    for panel in evaluation.panels("E6"):
        for way in panel.ways:
            for at in panel.places:
                rate = over(panel.of(way, at), "rows_per_s")
                best[way] = max(best.get(way, 0.0), rate.median if rate else 0.0)
    if any(best.values()):
        rates = (f"{way.label} {number(best[way])}" for way in sorted(best, key=lambda way: way.rank) if best[way])
        yield f"throughput at best: {', '.join(rates)} rows/s"


def _panel(evaluation: Evaluation) -> Panel | None:
    """Of the protocols side by side, what was run most often; then where latency is steadiest, so that batches differ least."""
    panels = [
        panel for panel in evaluation.panels("E1") if not panel.swept and over(panel.of(LIVE), JITTER) is not None
    ]
    real_time = aimed(evaluation) is not None  # then those runs have a line of their own
    own = [panel for panel in panels if not (real_time and panel.trigger == REAL_TIME)] or panels
    return min(own, key=lambda panel: (-len(panel.of(LIVE)), _steady_ms(panel)), default=None)


def _steady_ms(panel: Panel) -> float:
    latency = over(panel.of(LIVE), "steady_mean_ms")
    return float("inf") if latency is None else latency.median


def _named(panel: Panel) -> str:
    return ", ".join(filter(None, [panel.workload, panel.trigger]))


def _median(panel: Panel, way: Way) -> str:
    return f"{way.label} {value_text(over(panel.of(way), JITTER), JITTER)}"


def _by_way(runs: list[Run], name: str) -> str:
    ways = sorted({run.way for run in runs}, key=lambda way: way.rank)
    return ", ".join(
        f"{way.label} {value_text(over([run for run in runs if run.way == way], name), name)}" for way in ways
    )


assert figure(JITTER).unit == "ms", "the lines above say so"

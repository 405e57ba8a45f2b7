"""The part of the figures about Spark's real-time trigger, and about the settings of `godwit.tune`.

Runs with other options (a rate, a silence, short batches) are made one by one, so each figure comes from the newest run that
has it. A ratio is always to the copy in the JVM of the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any, Final

Row = dict[str, Any]
WAYS: Final = {
    "copy": "copy in the JVM",
    "native": "Godwit, native processor",
    "unchanged": "Godwit, StatefulProcessor",
}
OURS: Final = ("native", "unchanged")
RATES: Final = (500, 2_000, 8_000)  # of the aims
SUSTAINED: Final = 30_000
P50_TIMES, P99_TIMES, SILENCE_TIMES = 1.5, 2.0, 2.0
KEPT_UP: Final = 0.99  # of the rate comes out


def real_time_part(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    return [
        "## Real time: rows from Kafka to Kafka",
        f"Measured on {_of(rows[-1])}; made by `python -m benchmarks real-time`.",
        "Latency of a row: from the time at which it was due until a reader of the second topic had its result. Nothing moves.",
        "Broker, load and reader run on the same machine. Medians over runs; in brackets the least and the greatest.",
        "",
        *_table(rows),
        "",
        *_aims(rows),
        "",
    ]


def settings_part(rows: list[Row]) -> list[str]:
    """What is slower without a setting."""
    if not rows:
        return []
    triggers = dict.fromkeys(row["trigger"] for row in rows)
    parts = [line for trigger in sorted(triggers) for line in _settings([r for r in rows if r["trigger"] == trigger])]
    return [
        "## Settings",
        "What each setting of `godwit.tune` brings ([tuning](tuning.md)): the same query with all settings, and with one",
        f"after another left out, in turns; on {_of(rows[-1])}. The ratio is that of a round: above 1, the setting helps.",
        "",
        *parts,
    ]


def _of(row: Row) -> str:
    machine = row["machine"]
    return f"{machine['cores']} cores ({machine['cpu']}), commit {row['commit']}"


def _newest(rows: list[Row], wanted: Callable[[Row], bool]) -> list[Row]:
    """The rows that are wanted, of the last run that has any."""
    found = [row for row in rows if wanted(row)]
    return [row for row in found if row["run"] == found[-1]["run"]]


def _steady(rows: list[Row], rate: int) -> list[Row]:
    return _newest(rows, lambda row: row["rate"] == rate and not row["silence_s"] and not row["batch_s"])


def _spread(values: list[float], digits: int = 1) -> str:
    low, mid, high = (f"{value:,.{digits}f}" for value in (min(values), median(values), max(values)))
    return mid if low == high else f"{mid} ({low}-{high})"


def _middle(rows: list[Row], way: str, name: str) -> float | None:
    values = [row[name] for row in rows if row["way"] == way and row[name] is not None]
    return median(values) if values else None


def _times(rows: list[Row], way: str, name: str) -> float | None:
    """How many times the copy's figure."""
    ours, copy = _middle(rows, way, name), _middle(rows, "copy", name)
    return None if ours is None or not copy else ours / copy


def _shown(times: float | None) -> str:
    return "–" if times is None else f"{times:.1f}"


# -- the table -------------------------------------------------------------------------------------------------------


def _table(rows: list[Row]) -> list[str]:
    lines = [
        "| rows/s | way | p50, ms | times the copy | p99, ms | times the copy | max, ms | rows/s out | cores | lost |",
        "|---" * 10 + "|",
    ]
    for rate in sorted({row["rate"] for row in rows if not row["silence_s"] and not row["batch_s"]}):
        measured = _steady(rows, rate)
        for way in WAYS:
            mine = [row for row in measured if row["way"] == way]
            if mine:
                lines.append(_line(rate, way, mine, measured))
    return lines


def _line(rate: int, way: str, mine: list[Row], measured: list[Row]) -> str:
    def cell(name: str, digits: int = 1) -> str:
        return _spread([row[name] for row in mine], digits)

    p50, p99 = (_shown(_times(measured, way, name)) for name in ("p50_ms", "p99_ms"))
    cells = (f"{rate:,}", WAYS[way], cell("p50_ms"), p50, cell("p99_ms"), p99, cell("max_ms", 0))
    return (
        f"| {' | '.join(cells)} | {cell('rows_out_per_s', 0)} | {cell('cores_used')} | {sum(r['lost'] for r in mine)} |"
    )


# -- aims ------------------------------------------------------------------------------------------------------------


def _aims(rows: list[Row]) -> list[str]:
    lines = [line for way in OURS for line in (*_latency_aims(rows, way), *_other_aims(rows, way))]
    lost = sum(row["lost"] for row in rows)
    return [*lines, f"- {_word(not lost)}: no row is lost: {lost} lost in {len(rows)} runs"]


def _latency_aims(rows: list[Row], way: str) -> list[str]:
    lines = []
    for name, most in (("p50_ms", P50_TIMES), ("p99_ms", P99_TIMES)):
        times = [_times(_steady(rows, rate), way, name) if _has(rows, rate) else None for rate in RATES]
        known = [each for each in times if each is not None]
        met = None if len(known) < len(RATES) else max(known) <= most
        measured = ", ".join(map(_shown, times))
        rates = " / ".join(f"{rate:,}" for rate in RATES)
        lines.append(
            f"- {_word(met)}: {way}, {name[:3]} at most {most:g} times the copy's at {rates} rows/s: {measured}"
        )
    return lines


def _has(rows: list[Row], rate: int) -> bool:
    return any(row["rate"] == rate and not row["silence_s"] and not row["batch_s"] for row in rows)


def _other_aims(rows: list[Row], way: str) -> list[str]:
    mine = [row for row in rows if row["way"] == way]
    return [_sustained(mine, way), _after_silence(mine, way), _boundaries(mine, way)]


def _sustained(mine: list[Row], way: str) -> str:
    found = _newest(mine, lambda row: row["rate"] >= SUSTAINED)
    if not found:
        return f"- {_word(None)}: {way}, {SUSTAINED:,} rows/s sustained: not measured"
    out = median(row["rows_out_per_s"] for row in found)
    seconds, p99 = found[0]["steady_s"], _spread([row["p99_ms"] for row in found], 0)
    word = _word(out >= KEPT_UP * SUSTAINED)
    return f"- {word}: {way}, {SUSTAINED:,} rows/s sustained: {out:,.0f} rows/s over {seconds:.0f} s, p99 {p99} ms"


def _after_silence(mine: list[Row], way: str) -> str:
    found = _newest(mine, lambda row: row["silence_s"] > 0)
    if not found:
        return f"- {_word(None)}: {way}, one row after a minute of silence within {SILENCE_TIMES:g} times p50: not measured"
    times = median(row["after_silence_ms"] / row["p50_ms"] for row in found)
    took = _spread([row["after_silence_ms"] for row in found])
    silence = f"{found[0]['silence_s']:.0f} s"
    text = f"one row after {silence} of silence within {SILENCE_TIMES:g} times p50"
    return f"- {_word(times <= SILENCE_TIMES)}: {way}, {text}: {took} ms, {times:.1f} times"


def _boundaries(mine: list[Row], way: str) -> str:
    found = _newest(mine, lambda row: row["batch_s"] > 0 and row["boundary_max_ms"])
    if not found:
        return f"- {_word(None)}: {way}, the change from batch to batch at most one p99: not measured"
    worst = [max(row["boundary_max_ms"]) for row in found]
    steady = _steady(mine, found[0]["rate"]) if _has(mine, found[0]["rate"]) else found
    p99 = median(row["p99_ms"] for row in steady)
    word = _word(median(worst) <= p99)
    return f"- {word}: {way}, the change from batch to batch at most one p99: {_spread(worst, 0)} ms, p99 {p99:,.0f} ms"


def _word(met: bool | None) -> str:
    return {True: "met", False: "**missed**", None: "open"}[met]


# -- settings --------------------------------------------------------------------------------------------------------


def _settings(rows: list[Row]) -> list[str]:
    """A line for each setting, those that bring most first."""
    if not rows:
        return []
    rows = _newest(rows, lambda _: True)
    real_time = rows[0]["trigger"] == "real-time"
    names = ("p50_ms", "p99_ms") if real_time else ("batch_ms",)
    what = f"real time, {rows[0]['rate']:,} rows/s" if real_time else f"micro-batches of {rows[0]['batch_rows']:,} rows"
    heads = {"p50_ms": "p50, ms", "p99_ms": "p99, ms", "batch_ms": "a batch, ms"}
    head = (f"{what}: left out", *(heads[name] for name in names), "ratio")
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["left_out"], []).append(row)
    ranked = sorted(by_name.items(), key=lambda item: (item[0] != "none", -median(row["ratio"] for row in item[1])))
    cells = [
        (
            _code(name),
            *(_spread([row[figure] for row in mine]) for figure in names),
            _spread([r["ratio"] for r in mine], 2),
        )
        for name, mine in ranked
    ]
    return [*(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *cells)), ""]


def _code(name: str) -> str:
    return f"`{name}`" if name.startswith("spark.") else name

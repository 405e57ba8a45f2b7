"""The part of the figures that tells what measuring and backups cost, and how a flock follows its load."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.elasticity.followed_load import CALM_S
from benchmarks.running.record import newest

Row = dict[str, Any]


def following_part() -> list[str]:
    parts = (_measuring(), _relief(), _day(), _hot_key(), _backup())
    lines = [line for part in parts for line in part]
    return ["## Following the load, and backups", *lines] if lines else []


def _of(rows: list[Row]) -> str:
    machine = rows[0]["machine"]
    return f"{machine['cores']} cores, commit {rows[0]['commit']}"


def paid(rows: list[Row], what: str, aim: str = "") -> list[str]:
    """What something costs while nothing happens, in pairs of runs."""
    if not rows:
        return []
    ratio = rows[-1]["ratio"]
    return [
        f"**{what}** ({_of(rows)}): throughput {ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f}) of the same query",
        f"without, over {ratio['runs']:.0f} pairs of runs, by the first quartile of batch times{aim}.",
        "",
    ]


def _measuring() -> list[str]:
    return paid(newest("elasticity", "measuring"), "Measuring", " (aim: 0.98)")


def _backup() -> list[str]:
    return paid(newest("backup", "backup"), "Backups")


def _relief() -> list[str]:
    rows = newest("elasticity", "relief")
    if not rows:
        return []
    first = rows[0]
    lines = [
        f"**From overload to relief** ({_of(rows)}). One host that can do {1e6 / first['row_us']:,.0f} rows/s gets",
        f"{first['rate'] // 5:,}, then {first['rate']:,} a second. Seconds after the step until it was decided to scale,",
        f"until the new hosts had their keys, and until rows were back within {first['target_s']:g} s; the run ends",
        f"{first['seconds'] - CALM_S} s after the step, so that figure means that they were not.",
        "",
        "| warm hosts | decided | served | relieved | highest p99, s |",
        "|---|---|---|---|---|",
    ]
    for warm in sorted({row["warm"] for row in rows}):
        mine = [row for row in rows if row["warm"] == warm]
        cells = [_span(mine, name) for name in ("decided_s", "served_s", "relieved_s")]
        peak = _span([{"s": row["peak_p99_ms"] / 1000} for row in mine], "s")
        lines.append(f"| {warm} | {' | '.join(cells)} | {peak} |")
    return [*lines, ""]


def _span(rows: list[Row], name: str) -> str:
    values = sorted(row[name] for row in rows if row[name] is not None)
    if not values:
        return "-"
    return f"{values[0]:.1f}" if len(values) == 1 else f"{median(values):.1f} ({values[0]:.1f}-{values[-1]:.1f})"


def _day() -> list[str]:
    rows = newest("elasticity", "day")
    if not rows:
        return []
    first = rows[0]
    lines = [
        f"**A day's load** in {first['seconds']} s ({_of(rows)}): sine and spikes up to {first['rate']:,} rows/s, followed by",
        f"the sizing rules. Target: p99 of a second's rows within {first['target_s']:g} s (aims: held in 99 % of the seconds,",
        "with 1.25 of the host-seconds of an oracle that knows the future).",
        "",
        "| run | target held | host-seconds | oracle's | ratio | actions |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['repeat'] + 1} | {100 * row['target_held']:.1f} % | {row['host_seconds']:,} | "
        f"{row['host_seconds_oracle']:,} | {row['cost_ratio']:.3f} | {row['actions']} |"
        for row in rows
    ]
    return [*lines, ""]


def _hot_key() -> list[str]:
    rows = newest("elasticity", "hot-key")
    if not rows:
        return []
    lines = [
        f"**One hot key** ({_of(rows)}), with its rows merged where they are read, and one by one; rows/s and their ratio.",
        "",
        "| of the rows | a row takes | one by one | merged | ratio | applied |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['share']} % | {row['row_us']:g} µs | {row['rows_per_s']['median']:,.0f} | "
        f"{row['merged_rows_per_s']['median']:,.0f} | {row['ratio']['median']:.2f} | "
        f"{100 * row['applied_share']['median']:.1f} % |"
        for row in rows
    ]
    return [*lines, ""]

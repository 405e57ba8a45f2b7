"""Writes the figures in README and docs from the raw results, or only says which files are out of date."""

from __future__ import annotations

import statistics
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.campaign.aims import aims
from benchmarks.plots.evaluation import Evaluation
from benchmarks.report import headline, html, markdown, read
from benchmarks.report.following import following_part, paid
from benchmarks.report.keys import keys_part, newest_of_each
from benchmarks.report.real_time_part import real_time_part, settings_part
from benchmarks.running.measures import spread as spread_of
from benchmarks.running.record import RESULTS, ROOT, every, newest
from benchmarks.running.triggers import MICRO_BATCH

BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
NAMES = {
    "copy": "`mapInArrow` that only copies",
    "copy-exchange": "the same behind an exchange by key",
    "spark-pandas": "Spark `transformWithStateInPandas` (RocksDB)",
    "spark-sql": "Spark SQL streaming aggregation (RocksDB)",
    "godwit-unchanged": "Godwit, the same StatefulProcessor",
    "godwit-unchanged-input": 'the same with `partitions="input"`',
    "godwit-native": "Godwit, native processor",
}


def throughput() -> dict[tuple[str, int], list[dict[str, Any]]]:
    cells: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in newest("throughput"):
        if row["way"] != "memory":
            cells[row["way"], row["batch_rows"]].append(row)
    return cells


def middle(rows: list[dict[str, Any]], field: str) -> float:
    return float(statistics.median(row[field] for row in rows))


def spread(rows: list[dict[str, Any]], field: str) -> str:
    values = sorted(row[field] for row in rows)
    return f"{values[0]:,.0f}-{values[-1]:,.0f}"


def throughput_table() -> list[str]:
    cells = throughput()
    lines = ["| way | rows a batch | batch, ms (spread) | rows/s (spread) |", "|---|---|---|---|"]
    for (way, size), rows in sorted(cells.items(), key=lambda cell: (cell[0][1], list(NAMES).index(cell[0][0]))):
        lines.append(
            f"| {NAMES[way]} | {size:,} | {middle(rows, 'batch_ms'):,.0f} ({spread(rows, 'batch_ms')}) | "
            f"{middle(rows, 'rows_per_second'):,.0f} ({spread(rows, 'rows_per_second')}) |"
        )
    return lines


def best_rate(way: str) -> float:
    rates = [middle(rows, "rows_per_second") for (name, _), rows in throughput().items() if name == way]
    return max(rates, default=float("nan"))


def ratios() -> list[str]:
    """What the figures are for: the same run, so that the machine cancels out."""
    cells = throughput()
    small = min(size for _, size in cells)
    pandas = best_rate("spark-pandas")
    native, sql = best_rate("godwit-native"), best_rate("spark-sql")
    unchanged, as_read = best_rate("godwit-unchanged"), best_rate("godwit-unchanged-input")
    lines = [
        f"- unchanged processor: **{unchanged / pandas:,.0f} times** Spark's Python state API in rows/s (aim: 25)",
        f'- the same with `partitions="input"`: **{as_read / pandas:,.0f} times** (aim: 40)',
        f"- native processor: **{native / pandas:,.0f} times** Spark's Python state API (aim: 40)",
        f"- native processor: **{native / sql:,.1f} times** Spark SQL's aggregation in the JVM (aim: over 1)",
    ]
    for way, copy, what, aim in (
        ("godwit-native", "copy", "the copying `mapInArrow`", 1.25),
        ("godwit-unchanged", "copy-exchange", "the copying `mapInArrow` behind the same exchange", 1.6),
    ):
        ratio = middle(cells[way, small], "batch_ms") / middle(cells[copy, small], "batch_ms")
        lines.append(f"- a batch of {small} rows, {NAMES[way]}: {ratio:.2f} times {what} (aim: {aim})")
    return lines + memory_lines()


def memory_lines() -> list[str]:
    return [
        f"- {row['keys'] / 1e6:.0f} M keys x {row['value_bytes']} B on one host: {row['host_bytes'] / 1e6:,.0f} MB of process "
        f"memory, {row['bytes_per_key']:.0f} B a key (aim: under 1 GB)"
        for row in newest("throughput")
        if row["way"] == "memory"
    ]


def recovery_lines() -> list[str]:
    sizes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in newest("recovery"):
        sizes[row["state_mb"]].append(row)
    lines = ["| state, MB | killed host serves again after, s (spread) | loading, s | MB/s |", "|---|---|---|---|"]
    for size, rows in sorted(sizes.items()):
        away = sorted(row["away_s"] for row in rows)
        lines.append(
            f"| {size} | {statistics.median(away):.2f} ({away[0]:.2f}-{away[-1]:.2f}) | {middle(rows, 'load_s'):.2f} | "
            f"{middle(rows, 'load_mb_per_second'):,.0f} |"
        )
    return lines


MIGRATION = {  # heading: field, digits, how many of the field's unit make one
    "stall p50, ms": ("stall_p50_ms", 1, 1),
    "stall p99, ms": ("stall_p99_ms", 1, 1),
    "stall max, ms": ("stall_max_ms", 1, 1),
    "disruption, ms": ("disruption_ms", 0, 1),
    "peak jitter (p99), ms": ("peak_jitter_p99_ms", 0, 1),
    "reconfiguration, s": ("reconfiguration_s", 2, 1),
    "stabilise, s": ("stabilise_s", 2, 1),
    "rows sent twice": ("rows_sent_twice", 0, 1),
    "extra memory, MB": ("extra_memory_bytes_max", 0, 1e6),
}


def migration_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Medians with spread, by protocol, then the aims."""
    lines = [f"| protocol | {' | '.join(MIGRATION)} |", "|---" * (len(MIGRATION) + 1) + "|"]
    for protocol in dict.fromkeys(row["protocol"] for row in rows):
        mine = [row for row in rows if row["protocol"] == protocol]
        cells = [_cell(_values(mine, field), digits, per) for field, digits, per in MIGRATION.values()]
        lines.append(f"| {protocol} | {' | '.join(cells)} |")
    return [*lines, "", *(f"- {_word(aim.met)}: {aim.text}: {aim.measured}" for aim in aims(rows))]


def _values(rows: list[dict[str, Any]], field: str) -> list[float | None]:
    """A run in which no row was recorded as waiting says nothing about stall."""
    return [None if field.startswith("stall_") and not row["stall_rows"] else row[field] for row in rows]


def _cell(values: list[float | None], digits: int, per: float) -> str:
    over_runs = spread_of(values)
    if over_runs is None:
        return "none"
    low, mid, high = (f"{over_runs[name] / per:,.{digits}f}" for name in ("min", "median", "max"))
    return mid if low == high else f"{mid} ({low}-{high})"


def _word(met: bool | None) -> str:
    return {True: "met", False: "**missed**", None: "open"}[met]


def migration_part() -> list[str]:
    """Nothing before the first series is kept."""
    rows = newest("migration")
    if not rows:
        return []
    first = rows[0]
    share = f" ({first['load']:.0%} of the measured capacity)" if first["capacity_rows_per_s"] else ""
    return [
        "## Keys that move while rows come in",
        f"Measured on {measured_on('migration')}. {first['keys']:,} keys x {first['state_bytes']:,} B,",
        f"{middle(rows, 'keys_moved'):,.0f} of them moved ({first['target']}), {first['hosts']} hosts,",
        f"{first['rate_rows_per_s']:,} rows/s{share}, {len({row['repeat'] for row in rows})} runs.",
        f"Steady latency {middle(rows, 'steady_mean_ms'):,.0f} ms, sigma {middle(rows, 'steady_sigma_ms'):,.0f} ms. Made by",
        "`make bench-migration`; `python -m benchmarks migration --help` says what the words mean.",
        "",
        *migration_lines(rows),
        "",
        *sweep_part(),
        *rest_part(),
    ]


SWEEPS = {"state_bytes": "state per key, bytes", "keys_moved": "keys moved"}
FLAT = 2.0  # the aim: stall changes by less than this


def sweep_part() -> list[str]:
    """Whether `live` stays flat as state per key and the number of keys grow."""
    swept = [run.line for run in evaluated().runs if run.text("experiment") == "E2" and run.text("way") == "live"]
    rows = [dict(line) for line in swept if line["swept"] in SWEEPS and line["trigger"] == MICRO_BATCH]
    if not rows:
        return []
    parts = [
        f"`live`, swept, on {_circumstances(rows[0])}; made by `python -m benchmarks run E2 --only live,-real-time`.",
        "",
    ]
    for name, heading in SWEEPS.items():
        mine = [row for row in rows if row["swept"] == name]
        if mine:
            parts += [*sweep_lines(mine, heading), ""]
    return parts


def sweep_lines(rows: list[dict[str, Any]], heading: str) -> list[str]:
    """A line for each value; then by how much the medians of stall differ, over values at which rows waited."""
    lines = [
        f"| {heading} | stall p99, ms | stall max, ms | disruption, ms | reconfiguration, s |",
        "|---|---|---|---|---|",
    ]
    peaks = []
    for at in sorted({row["at"] for row in rows}):
        mine = [row for row in rows if row["at"] == at]
        cells = [_cell(_values(mine, field), digits, 1) for field, digits in SWEPT_FIELDS.items()]
        lines.append(f"| {at:,.0f} | {' | '.join(cells)} |")
        over_runs = spread_of(_values(mine, "stall_max_ms"))
        peaks += [over_runs["median"]] if over_runs and over_runs["median"] else []
    ratio = max(peaks) / min(peaks) if len(peaks) > 1 else None
    measured = "rows waited at too few of the values to say" if ratio is None else f"{ratio:.1f} times"
    word = _word(None if ratio is None else ratio < FLAT)
    return [*lines, "", f"- {word}: stall (max) changes by less than {FLAT:g} times: {measured}"]


SWEPT_FIELDS = {"stall_p99_ms": 1, "stall_max_ms": 1, "disruption_ms": 0, "reconfiguration_s": 2}


def rest_part() -> list[str]:
    return paid(newest("rest"), "Support for moving keys, nothing moved", " (aim: 0.98)")


def measured_on(name: str) -> str:
    rows = newest(name)
    if not rows:
        return "no machine yet"
    return _circumstances(rows[0])


def _circumstances(row: dict[str, Any]) -> str:
    machine = row["machine"]
    return f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, commit {row['commit']}, run {row['run']}"


def page() -> str:
    parts = [
        "# Benchmarks",
        "",
        "Made by `make bench-throughput` and `make bench-recovery` (raw results in `benchmarks/results/`), written by",
        "`python -m benchmarks docs`. Other machines give other figures; ratios within a run are what carries over.",
        "",
        "## Key-count: rows a second and batch latency",
        f"Measured on {measured_on('throughput')}. 10,000 keys, 2 partitions, 2 hosts, noop sink, one output row per input row",
        "(Spark SQL: one per changed key). Spark's Python state API has at most 5,000 rows a batch here: more take minutes.",
        "",
        *throughput_table(),
        "",
        *ratios(),
        "",
        *keys_part(newest_of_each(every("keys"))),
        "## Recovery of a killed host",
        f"Measured on {measured_on('recovery')}. One host, values of 1,000 B, SIGKILL until the next generation serves.",
        "",
        *recovery_lines(),
        "",
        *migration_part(),
        *following_part(),
        *real_time_part(every("real-time")),
        *settings_part(every("tuning")),
    ]
    return "\n".join(parts)


def readme() -> str:
    text = (ROOT / "README.md").read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    cores = newest("throughput")[0]["machine"]["cores"]
    results = evaluated()
    evaluation = [
        f"From the [evaluation](docs/evaluation.md), on {cores} cores ([page](docs/evaluation.html)):",
        "",
        *(f"- {line}" for line in headline(results)),
        "",
    ]
    block = "\n".join(
        [
            *(evaluation if results.runs else []),
            f"Key-count on {cores} cores, all in one run ([all figures](docs/benchmarks.md)):",
            "",
            *ratios(),
        ]
    )
    return f"{head}{BEGIN}\n{block}\n{END}{tail}"


@cache
def evaluated() -> Evaluation:
    results = RESULTS / "evaluation.jsonl"
    return read(results.read_text().splitlines() if results.exists() else [])


def evaluation() -> str:
    """The page with its figures between the marks; what is said around them is written by hand."""
    head, rest = (ROOT / "docs/evaluation.md").read_text().split(BEGIN)
    return f"{head}{BEGIN}\n{markdown(evaluated()).strip()}\n{END}{rest.split(END)[1]}"


def stale() -> dict[Path, str]:
    """The files that do not say what the results say, each with what it should say."""
    wanted = {
        "docs/benchmarks.md": page(),
        "README.md": readme(),
        "docs/evaluation.md": evaluation(),
        "docs/evaluation.html": html(evaluated()),
    }
    texts = {ROOT / name: text for name, text in wanted.items()}
    return {path: text for path, text in texts.items() if not path.exists() or path.read_text() != text}


def write(check: bool) -> int:
    """The exit code: 1 if a file is out of date and was only looked at."""
    out_of_date = stale()
    for path, text in out_of_date.items():
        if not check:
            path.write_text(text)
    names = ", ".join(path.name for path in out_of_date)
    print(f"{'out of date' if check else 'written'}: {names or 'nothing'}")
    return int(check and bool(out_of_date))

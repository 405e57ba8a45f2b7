"""What docs/benchmarks.md says about the number of keys: rows a second beside Spark SQL, and the memory of the hosts."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

HEADING = (
    "| keys | native processor, rows/s (spread) | Spark SQL, rows/s (spread) | ratio | memory of hosts, MB | B a key |"
)


def newest_of_each(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each number of keys the lines of the last run that has it: many keys take a run of their own."""
    runs = {row["keys"]: row["run"] for row in rows}
    return [row for row in rows if row["run"] == runs[row["keys"]]]


def keys_part(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Nothing before the first run is kept."""
    if not rows:
        return []
    machine, commits = rows[0]["machine"], ", ".join(dict.fromkeys(row["commit"] for row in rows))
    return [
        "## Key-count by number of keys",
        f"Measured on {machine['cores']} cores ({machine['cpu']}), commit {commits}. 2 hosts,",
        f"{rows[0]['batch_rows']:,} rows a batch. All keys have come before rows are measured. B a key: what the processes of",
        "the hosts hold beyond those with the fewest keys, buffers included. Made by",
        "`python -m benchmarks key-count --keys 10000 100000 1000000`.",
        "",
        *keys_lines(rows),
        "",
    ]


def keys_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["keys"], row["way"]].append(row)
    lines = [HEADING, "|---" * 6 + "|"]
    fewest = min(row["keys"] for row in rows)
    fewest_bytes = _middle(cells[fewest, "godwit-native"], "hosts_bytes")
    for keys in sorted({row["keys"] for row in rows}):
        mine, sql = cells[keys, "godwit-native"], cells[keys, "spark-sql"]
        ratio = _middle(mine, "rows_per_second") / _middle(sql, "rows_per_second")
        held_bytes = _middle(mine, "hosts_bytes")
        per_key = f"{(held_bytes - fewest_bytes) / (keys - fewest):,.0f}" if keys > fewest else ""
        lines.append(f"| {keys:,} | {_rate(mine)} | {_rate(sql)} | {ratio:.1f} | {held_bytes / 1e6:,.0f} | {per_key} |")
    return lines


def _rate(rows: Sequence[dict[str, Any]]) -> str:
    rates = sorted(row["rows_per_second"] for row in rows)
    reached = min(row["keys_reached"] for row in rows)
    note = "" if reached >= rows[0]["keys"] else f"; {reached:,} keys in the time given"
    return f"{statistics.median(rates):,.0f} ({rates[0]:,.0f}-{rates[-1]:,.0f}{note})"


def _middle(rows: Sequence[dict[str, Any]], field: str) -> float:
    return float(statistics.median(row[field] for row in rows))

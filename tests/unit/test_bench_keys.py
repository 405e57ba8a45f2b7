"""The table of key-count by number of keys: medians over runs, ratios, and what did not fit into the time."""

from __future__ import annotations

from typing import Any

from benchmarks.report.keys import keys_lines, keys_part, newest_of_each


def row(keys: int, way: str, rate: float, reached: int | None = None) -> dict[str, Any]:
    memory = {"hosts_bytes": 3e8 + 60 * keys} if way == "godwit-native" else {}
    return {
        "keys": keys,
        "way": way,
        "rows_per_second": rate,
        "keys_reached": reached or keys,
        "batch_rows": 100,
    } | memory


def test_each_number_of_keys_has_a_line_with_medians_and_the_ratio() -> None:
    rates = [
        (10, "godwit-native", 300.0),
        (10, "spark-sql", 100.0),
        (10, "godwit-native", 100.0),
        (10, "godwit-native", 200.0),
    ]
    assert keys_lines([row(*each) for each in rates])[2:] == ["| 10 | 200 (100-300) | 100 (100-100) | 2.0 | 300 |  |"]


def test_keys_that_did_not_come_in_time_are_named() -> None:
    lines = keys_lines([row(1_000, "godwit-native", 5.0), row(1_000, "spark-sql", 4.0, reached=700)])
    assert lines[2].split(" | ")[1:3] == ["5 (5-5)", "4 (4-4; 700 keys in the time given)"]


def test_numbers_of_keys_go_up() -> None:
    rows = [row(keys, way, 1.0) for keys in (1_000_000, 10_000) for way in ("godwit-native", "spark-sql")]
    lines = [line.split(" | ") for line in keys_lines(rows)[2:]]
    assert [line[0] for line in lines] == ["| 10,000", "| 1,000,000"]
    assert [line[-1] for line in lines] == [" |", "60 |"], "beyond what the hosts with the fewest keys hold"


def test_before_the_first_run_the_page_says_nothing() -> None:
    assert keys_part([]) == []


def test_of_each_number_of_keys_the_last_run_counts() -> None:
    rows = [{"keys": keys, "run": run} for keys, run in [(1, "a"), (2, "a"), (1, "b"), (1, "b"), (3, "c")]]
    assert newest_of_each(rows) == [rows[1], *rows[2:]]

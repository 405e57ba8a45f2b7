"""The chapter about real time: its figures are medians of the newest run, its aims are met only if all rates meet them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.report.real_time_part import real_time_part, settings_part

MACHINE = {"cores": 2, "cpu": "A CPU"}


def run(way: str = "native", rate: int = 500, p50: float = 10.0, p99: float = 20.0, **more: Any) -> dict[str, Any]:
    line = {
        "way": way,
        "rate": rate,
        "p50_ms": p50,
        "p99_ms": p99,
        "max_ms": 90.0,
        "rows_out_per_s": rate,
        "cores_used": 0.5,
    }
    line |= {
        "run": "r1",
        "commit": "abc",
        "machine": MACHINE,
        "steady_s": 15.0,
        "silence_s": 0.0,
        "batch_s": 0.0,
        "lost": 0,
    }
    return line | {"after_silence_ms": None, "boundary_max_ms": None} | more


def all_rates(way: str, p50: float, p99: float) -> list[dict[str, Any]]:
    return [run(way, rate, p50, p99) for rate in (500, 2_000, 8_000)]


def said(rows: list[dict[str, Any]], words: str) -> str:
    (line,) = (line for line in real_time_part(rows) if words in line)
    return line


def test_nothing_is_said_before_anything_is_measured() -> None:
    assert real_time_part([]) == []
    assert settings_part([]) == []


def test_a_line_has_medians_with_the_spread_and_the_ratio_to_the_copy_of_the_same_run() -> None:
    rows = [run("copy", p50=p50) for p50 in (4.0, 5.0, 9.0)] + [run("native", p50=p50) for p50 in (8.0, 10.0, 11.0)]
    assert "| 500 | Godwit, native processor | 10.0 (8.0-11.0) | 2.0 | 20.0 | 1.0 |" in "\n".join(real_time_part(rows))


def test_an_older_run_counts_where_a_newer_one_has_no_such_figure() -> None:
    rows = [run(p50=50.0), run(p50=7.0, run="r2"), run(rate=2_000, p50=3.0, run="r3")]
    text = "\n".join(real_time_part(rows))
    assert "| 500 | Godwit, native processor | 7.0 |" in text
    assert "| 2,000 | Godwit, native processor | 3.0 |" in text


@pytest.mark.parametrize(("p50", "word"), [(14.9, "- met"), (15.1, "- **missed**")])
def test_an_aim_of_latency_is_met_if_it_is_at_every_rate(p50: float, word: str) -> None:
    rows = all_rates("copy", 10.0, 20.0) + all_rates("native", 10.0, 20.0)[:2] + [run("native", 8_000, p50)]
    assert said(rows, "native, p50 at most 1.5 times").startswith(word)


def test_an_aim_is_open_while_a_rate_is_not_measured() -> None:
    assert said([*all_rates("copy", 1, 1), run()], "native, p99 at most").startswith("- open")
    assert said([run()], "native, one row after").endswith("not measured")


@pytest.mark.parametrize(("out", "word"), [(29_900, "- met"), (20_000, "- **missed**")])
def test_a_rate_is_sustained_if_as_much_comes_out(out: int, word: str) -> None:
    assert said([run(rate=30_000, rows_out_per_s=out)], "native, 30,000 rows/s sustained").startswith(word)


@pytest.mark.parametrize(("after", "word"), [(19.0, "- met"), (21.0, "- **missed**")])
def test_the_row_after_a_silence_is_beside_p50(after: float, word: str) -> None:
    assert said([run(silence_s=60.0, after_silence_ms=after)], "native, one row after 60 s").startswith(word)


@pytest.mark.parametrize(("worst", "word"), [(20.0, "- met"), (21.0, "- **missed**")])
def test_the_worst_change_of_batches_is_beside_the_p99_without_changes(worst: float, word: str) -> None:
    rows = [run(), run(batch_s=10.0, p99=99.0, boundary_max_ms=[3.0, worst], run="r2")]
    assert said(rows, "native, the change from batch to batch").startswith(word)


def test_settings_that_bring_most_come_first() -> None:
    def line(name: str, ratio: float) -> dict[str, Any]:
        more = {"batch_ms": 100 * ratio, "batch_rows": 500, "ratio": ratio}
        return {"trigger": "micro-batch", "left_out": name, "run": "r1", "commit": "abc", "machine": MACHINE} | more

    lines = settings_part([line("none", 1.0), line("spark.a", 1.1), line("spark.b", 1.5)])
    assert [text.split(" | ")[0] for text in lines if text.startswith("| ") and "---" not in text] == [
        "| micro-batches of 500 rows: left out",
        "| none",
        "| `spark.b`",
        "| `spark.a`",
    ]

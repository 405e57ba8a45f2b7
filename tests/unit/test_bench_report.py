"""The report of the evaluation: its numbers against computations of their own, its text against what may be in the data."""

from __future__ import annotations

import random
import re
import statistics
import xml.etree.ElementTree as ET
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.plots.charts import Look
from benchmarks.plots.evaluation import WAYS, Way
from benchmarks.plots.published import comparison, papers, sweep
from benchmarks.plots.svg import Scale, path, spaced
from benchmarks.report import headline, html, markdown, read
from tests.unit.evaluation_lines import MAGNITUDES, PARTS, RUNS, evaluation, full, line, timeline

EXPERIMENTS = ("E1", "E2", "E3", "E4", "E5", "E6")


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return full()


@pytest.fixture(scope="module")
def page(lines: list[dict[str, Any]]) -> str:
    return html(evaluation(lines))


@pytest.fixture(scope="module")
def prose(lines: list[dict[str, Any]]) -> str:
    return markdown(evaluation(lines))


# -- reading the report as a reader would ---------------------------------------------------------------------------


def sections(text: str) -> dict[str, str]:
    """The Markdown by heading."""
    parts = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def tables(text: str) -> list[list[list[str]]]:
    """Every table of a piece of Markdown: rows of cells, the heading first."""
    found: list[list[list[str]]] = []
    for before, row in zip(["", *text.splitlines()], text.splitlines(), strict=False):
        if row.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            if not row.startswith("|---"):
                found[-1].append([cell.strip() for cell in row.strip("|").split(" | ")])
    return found


def cells(table: list[list[str]]) -> dict[tuple[str, str], str]:
    """By row and column."""
    head, *rows = table
    return {(row[0], name): cell for row in rows for name, cell in zip(head, row, strict=True)}


def expected(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def numbers(cell: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*\.?\d*", cell)]


def drawn(page: str) -> list[ET.Element]:
    return [ET.fromstring(found) for found in re.findall(r'<svg viewBox="0 0 360.*?</svg>', page, re.DOTALL)]


# -- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", ["key-count", "traffic"])
@pytest.mark.parametrize(
    ("column", "field"), [("peak jitter (p99), ms", "peak_jitter_p99_ms"), ("stall p99, ms", "stall_p99_ms")]
)
def test_a_cell_is_the_median_and_spread_of_its_runs(
    lines: list[dict[str, Any]], prose: str, workload: str, column: str, field: str
) -> None:
    shown = cells(tables(sections(prose)[f"E1, {workload}, real-time trigger"])[0])
    for way in ("live", "push", "fetch", "pause"):
        values = [
            each[field]
            for each in lines
            if (each["experiment"], each["workload"], each["way"]) == ("E1", workload, way)
        ]
        assert len(values) == RUNS
        assert numbers(shown[way, column]) == pytest.approx(expected(values), rel=0.01)


def test_what_a_system_does_not_have_is_a_dash_and_not_a_zero(prose: str) -> None:
    shown = cells(tables(sections(prose)["E1, key-count, real-time trigger"])[0])
    assert shown["Flink adaptive", "stall p99, ms"] == "–"
    assert shown["Flink adaptive", "peak jitter (p99), ms"] != "–"


def test_a_sweep_has_a_column_a_point(lines: list[dict[str, Any]], prose: str) -> None:
    table = tables(sections(prose)["E2, key-count, real-time trigger, by state per key"])[0]
    assert table[0] == ["peak jitter (p99), ms, by state per key", "1 KB", "10 KB", "100 KB", "1 MB", "10 MB", "100 MB"]
    values = [
        each["peak_jitter_p99_ms"]
        for each in lines
        if (each["swept"], each["at"], each["way"], each["experiment"]) == ("state_bytes", 10_000_000, "push", "E2")
    ]
    assert numbers(cells(table)["push", "10 MB"]) == pytest.approx(expected(values), rel=0.01)


def test_orders_are_compared_for_each_protocol_apart(lines: list[dict[str, Any]], prose: str) -> None:
    table = tables(sections(prose)["E4, key-count, push, real-time trigger, by skew (Zipf exponent)"])[0]
    assert [row[0] for row in table[1:]] == ["sudden", "fluid", "batched", "hot-first", "by-backlog"]
    values = [
        each["peak_jitter_p99_ms"]
        for each in lines
        if (each["experiment"], each["order"], each["at"], each["way"]) == ("E4", "fluid", 0.8, "push")
    ]
    assert numbers(cells(table)["fluid", "0.80"]) == pytest.approx(expected(values), rel=0.01)


def test_phases_are_measured_in_seconds_and_overlapping_ones_counted_once() -> None:
    told = {"spans": [["copy", 0.0, 0.2], ["copy", 0.1, 0.3], ["cut", 0.3, 0.31], ["copy", 0.5, 0.6]]}
    only = line(random.Random(1), "E3", "godwit", "live", 0, **told)
    shown = cells(tables(sections(markdown(evaluation([only])))["E3, key-count, real-time trigger"])[1])
    assert float(shown["live", "copy"]) == pytest.approx(0.4)
    assert float(shown["live", "cut"]) == pytest.approx(0.01)


def test_the_cost_of_a_row_is_told_by_part(lines: list[dict[str, Any]], prose: str) -> None:
    table = tables(sections(prose)["E6, key-count, real-time trigger, by hosts"])[1]
    assert table[0] == ["µs a row", *PARTS]
    profiled = [each for each in lines if each["experiment"] == "E6" and each["at"] == 2 and each["system"] == "godwit"]
    values = [each["microseconds_per_row"]["wire"] for each in profiled]
    assert numbers(cells(table)["native 2", "wire"]) == pytest.approx(expected(values), abs=0.006)


def test_ours_stands_beside_published_as_parts_of_a_restart(lines: list[dict[str, Any]], prose: str) -> None:
    medians = {
        way: statistics.median(
            each["peak_jitter_p99_ms"]
            for each in lines
            if (each["experiment"], each["workload"], each["way"]) == ("E1", "traffic", way)
        )
        for way in ("live", "restart")
    }
    table = tables(sections(prose)["E1, traffic, real-time trigger"])[-1]
    row = next(row for row in table if row[0] == "live")
    assert numbers(row[2]) == pytest.approx([100 * medians["live"] / medians["restart"]], rel=0.02)
    assert row[3] == "42"
    assert numbers(row[4]) == pytest.approx([100 * 42 / 14110], rel=0.02)


def test_a_workload_that_the_paper_lacks_stands_beside_the_range_of_all_its_workloads(prose: str) -> None:
    row = next(row for row in tables(sections(prose)["E1, key-count, real-time trigger"])[-1] if row[0] == "live")
    assert row[3] == "42-58"
    shares = [100 * 58 / 36060, 100 * 42 / 14110]
    assert numbers(row[4])[0] == pytest.approx(min(shares), rel=0.05)


def test_published_figures_are_as_printed() -> None:
    paper = comparison()
    row = paper.row("fetch")
    assert row is not None
    assert row.by_workload["traffic"] == {"disruption_ms": 70000, "peak_jitter_p99_ms": 490}
    assert row.by_workload["accident"] == {"disruption_ms": 95000, "peak_jitter_p99_ms": 2500}
    pause = paper.row("pause")
    assert pause is not None
    assert set(pause.by_workload) == {"traffic", "NEXMark Q6", "accident"}
    assert {row.way for row in paper.rows} <= {name for system, name in WAYS if system == "godwit"}
    line_of = sweep("keys_moved")
    assert line_of is not None
    assert dict(zip(line_of.at, line_of.values, strict=True))[10_000] == 127
    assert papers().keys() >= {paper.paper, line_of.paper}


def test_latency_that_was_not_back_counts_as_the_worst_and_not_as_missing() -> None:
    told = [{"stabilise_s": 1.5}, {"stabilise_s": None}, {"stabilise_s": None}]
    made = [line(random.Random(1), "E1", "godwit", "pause", repeat, **each) for repeat, each in enumerate(told)]
    shown = cells(tables(sections(markdown(evaluation(made)))["E1, key-count, real-time trigger"])[0])
    assert shown["pause", "stabilises in, s"] == "not back (1.50-not back)"


def test_stall_of_a_run_in_which_no_row_waited_is_no_zero() -> None:
    made = [
        line(random.Random(1), "E1", "godwit", "live", 0, stall_rows=0, stall_p99_ms=0.0),
        line(random.Random(1), "E1", "godwit", "live", 1, stall_rows=9, stall_p99_ms=8.0),
    ]
    shown = cells(tables(sections(markdown(evaluation(made)))["E1, key-count, real-time trigger"])[0])
    assert shown["live", "stall p99, ms"] == "8"


# -- which lines count ------------------------------------------------------------------------------------------------


def test_the_newest_run_of_a_series_counts_and_the_others_are_said_to_be_left_out() -> None:
    old = line(random.Random(1), "E1", "godwit", "live", 0, run="20261101T000000Z", peak_jitter_p99_ms=999.0, lost=4)
    new = line(random.Random(1), "E1", "godwit", "live", 0, peak_jitter_p99_ms=11.0)
    other = line(random.Random(1), "E5", "godwit", "standby", 0, run="20261102T000000Z", recovery_s=0.25)
    text = markdown(evaluation([new, old, other]))
    assert "999" not in text
    assert "0.25" in text, "another series has its own newest run"
    assert "Left out, because the same was measured again later: 1 run, 1 of them not exact." in text


def test_takeovers_that_were_not_made_are_told_with_the_reason() -> None:
    reasons = [None, "[GODWIT-HOST-UNAVAILABLE] timers have fired here (host=host-1)", None]
    made = [
        line(random.Random(1), "E5", "godwit", way, at, taken_over=way == "standby" and reason is None, reason=reason)
        for way in ("standby", "storage")
        for at, reason in enumerate(reasons)
    ]
    told = "in 1 of 3 runs nobody took over, and the host was started again from storage (timers have fired here)."
    text = markdown(evaluation(made))
    assert f"standby: {told}" in text
    assert text.count("nobody took over") == 1, "from storage nobody ever does"


def test_a_line_written_again_after_a_resume_counts_once() -> None:
    first = line(random.Random(1), "E1", "godwit", "live", 0, peak_jitter_p99_ms=10.0)
    again = {**first, "peak_jitter_p99_ms": 20.0}
    found = evaluation([first, again])
    assert [run.figure("peak_jitter_p99_ms") for run in found.runs] == [20.0]


@pytest.mark.parametrize(
    ("trigger", "beside"),
    [("micro-batch", "micro-batch"), ("real-time", "real-time"), (None, "micro-batch")],
    ids=["rows made by itself", "rows from Kafka", "an older result"],
)
def test_another_system_stands_beside_our_runs_that_get_their_rows_as_it_does(trigger: str | None, beside: str) -> None:
    made = [line(random.Random(1), "E1", "godwit", "live", 0, trigger=ours) for ours in ("micro-batch", "real-time")]
    made.append(line(random.Random(1), "E1", "flink", "adaptive", 0, trigger=trigger))
    parts = sections(markdown(evaluation(made)))
    shown = {
        ours: [row[0] for row in tables(parts[f"E1, key-count, {ours} trigger"])[0][1:]]
        for ours in ("micro-batch", "real-time")
    }
    assert shown == {ours: ["live", *(["Flink adaptive"] if ours == beside else [])] for ours in shown}
    assert "E1, key-count" not in parts


def test_others_stay_when_only_ours_are_measured_again() -> None:
    other = line(random.Random(1), "E1", "flink", "adaptive", 0, run="20260101T000000Z")
    older = line(random.Random(1), "E1", "godwit", "live", 0, run="20260101T000000Z")
    newer = line(random.Random(1), "E1", "godwit", "live", 0, run="20260102T000000Z")
    found = evaluation([other, older, newer])
    assert [(run.way.system, run.text("run")) for run in found.runs] == [
        ("godwit", "20260102T000000Z"),
        ("flink", "20260101T000000Z"),
    ]
    assert [run.text("run") for run in found.left_out] == ["20260101T000000Z"]


@pytest.mark.parametrize("text", ["{", "[]", '{"benchmark": "migration"}', "null"])
def test_a_line_of_something_else_is_refused_with_its_number(text: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        read(["", text])


# -- exactness ----------------------------------------------------------------------------------------------------------


def test_the_summary_adds_up_rows_and_what_went_wrong(lines: list[dict[str, Any]], prose: str) -> None:
    total = sum(each["rows"] for each in lines)
    said = f"Exactness over {total:,} rows in {len(lines):,} runs: 0 lost, 0 duplicated, 0 out of order, 0 wrong state."
    assert said in prose
    assert "Not exact" not in prose


def test_what_is_not_exact_is_red_and_in_the_summary(lines: list[dict[str, Any]]) -> None:
    changed = [dict(each) for each in lines]
    bad = next(each for each in changed if (each["experiment"], each["way"], each["repeat"]) == ("E1", "push", 1))
    bad |= {"lost": 3, "wrong_state": 2}
    found = evaluation(changed)
    text, shown = markdown(found), html(found)
    assert "3 lost, 0 duplicated, 0 out of order, 2 wrong state" in text
    assert "**Not exact: E1, key-count, push, real-time, batched, run 2: 3 lost, 2 wrong state.**" in text
    row = next(row for row in tables(sections(text)["E1, key-count, real-time trigger"])[0] if "push" in row[0])
    assert row[0] == "**push (not exact)**"
    assert all(re.fullmatch(r"\*\*.*\*\*", cell) for cell in row if cell != "–")
    assert '<th class="wrong">push (not exact)</th>' in shown
    assert re.search(r'<text[^>]*class="name wrong"[^>]*>push ✗</text>', shown)
    assert headline(found)[0].startswith("**not exact in 1 runs**")


def test_what_is_exact_is_not_red(page: str) -> None:
    assert not re.search(r'class="[^"]*wrong', page)


def test_a_migration_that_failed_is_said_as_loudly() -> None:
    text = markdown(evaluation([line(random.Random(1), "E1", "godwit", "live", 0, outcome="aborted")]))
    assert "**Not exact: E1, key-count, live, real-time, batched, run 1: ended as aborted.**" in text


def test_runs_that_were_not_checked_are_not_counted_as_exact() -> None:
    unchecked = dict.fromkeys(("lost", "duplicated", "out_of_order", "wrong_state"))
    made = [
        line(random.Random(1), "E1", "flink", "adaptive", 0, **unchecked),
        line(random.Random(1), "E1", "godwit", "live", 0),
    ]
    text = markdown(evaluation(made))
    assert f"Exactness over {made[1]['rows']:,} rows in 1 run:" in text
    assert "Not checked for exactness: 1 run." in text


def test_a_system_that_did_not_carry_the_load_is_marked() -> None:
    text = markdown(evaluation([line(random.Random(1), "E1", "spark", "pandas", 0, sustained=False)]))
    assert "| Spark pandas † |" in text
    assert "† did not carry the load" in text


# -- missing parts ------------------------------------------------------------------------------------------------------


def test_nothing_measured_still_makes_a_report() -> None:
    empty = read([])
    assert markdown(empty).count("\nnot measured\n") == len(EXPERIMENTS)
    assert html(empty).count("<p>not measured</p>") == len(EXPERIMENTS)
    assert headline(empty) == ["not measured"]


@pytest.mark.parametrize("missing", EXPERIMENTS)
def test_a_missing_experiment_is_said_to_be_and_the_others_stay(lines: list[dict[str, Any]], missing: str) -> None:
    found = evaluation([each for each in lines if each["experiment"] != missing])
    text = markdown(found)
    assert text.count("\nnot measured\n") == 1
    for name in EXPERIMENTS:
        assert (f"### {name}, key-count" in text or f"### {name}, word-count" in text) == (name != missing)
    assert html(found).count("<p>not measured</p>") == 1


NEEDED = ("benchmark", "run", "experiment", "way")
FEW = ("live", "restart", "push", "adaptive", "standby", "native")  # enough to go through every part of the report


def few(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One run at each of the first two points of every sweep."""
    points: dict[tuple[Any, ...], dict[Any, None]] = {}
    for each in lines:
        points.setdefault((each["experiment"], each["swept"]), {})[each["at"]] = None
    shown = {key: list(found)[:2] for key, found in points.items()}
    some = [each for each in lines if each["repeat"] == 0 and each["way"] in FEW]
    return [each for each in some if each["at"] in shown[each["experiment"], each["swept"]]]


@pytest.mark.parametrize("field", sorted({name for each in full() for name in each} - set(NEEDED)))
def test_no_figure_has_to_be_there(lines: list[dict[str, Any]], field: str) -> None:
    for without in (
        [{name: value for name, value in each.items() if name != field} for each in few(lines)],
        [{**each, field: None} for each in few(lines)],
    ):
        found = evaluation(without)
        assert html(found)
        assert markdown(found)
        assert headline(found)


def test_a_figure_that_nothing_has_is_named_as_not_measured() -> None:
    made = line(random.Random(1), "E1", "godwit", "live", 0, stall_rows=None, **dict.fromkeys(STALLS))
    part = sections(markdown(evaluation([made])))["E1, key-count, real-time trigger"]
    assert "Not measured: stall p50, stall p99, stall max, rows emitted again." in part


STALLS = ("stall_p50_ms", "stall_p99_ms", "stall_max_ms")


def test_a_way_that_nobody_knows_is_shown_after_the_others() -> None:
    made = [line(random.Random(1), "E1", "godwit", way, 0) for way in ("teleport", "live", "restart")]
    shown = tables(sections(markdown(evaluation(made)))["E1, key-count, real-time trigger"])[0]
    assert [row[0] for row in shown[1:]] == ["live", "restart", "teleport"]


# -- the page ------------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects what a browser would fetch or follow, and that every element is closed."""

    VOID = {"meta", "br"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.followed: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("href", "xlink:href") and tag == "a":
                self.followed.append(value or "")
            elif name in ("src", "href", "xlink:href", "srcset", "data"):
                self.fetched.append(value or "")
        assert tag not in ("link", "iframe", "img", "object", "embed")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read_page(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_fetches_nothing_and_leads_only_to_papers(page: str) -> None:
    reader = read_page(page)
    assert reader.fetched == []
    links = {paper.link for paper in papers().values() if paper.link}
    assert {link for link in reader.followed if not link.startswith("#")} == links
    assert "url(" not in page
    assert "@import" not in page
    ids = set(re.findall(r' id="([^"]*)"', page))
    assert {link[1:] for link in reader.followed if link.startswith("#")} <= ids


def test_the_page_is_small_enough_to_send(page: str) -> None:
    assert 50_000 < len(page.encode()) < 1_500_000


def test_a_migration_of_many_steps_does_not_swell_the_page(lines: list[dict[str, Any]]) -> None:
    steps = [[name, at / 1000 + start, at / 1000 + end] for at in range(500) for name, start, end in STEP]
    found = html(evaluation([{**each, "spans": steps} for each in lines]))
    assert len(found.encode()) < 1_500_000
    read_page(found)


STEP = (("copy", 0.0, 0.0004), ("cut", 0.0004, 0.0006))


def test_a_phase_that_never_ended_is_left_out() -> None:
    told = {"spans": [["copy", 0.0, 0.2], ["cut", 0.2, None], ["lost"]]}
    found = evaluation([line(random.Random(1), "E3", "godwit", "live", 0, **told)])
    assert found.runs[0].spans() == [("copy", 0.0, 0.2)]


def test_the_same_lines_make_the_same_bytes_in_any_order(lines: list[dict[str, Any]]) -> None:
    varied = [{**each, "lost": index % 3, "machine": {"cores": index % 3}} for index, each in enumerate(lines)]
    shuffled = list(varied)
    random.Random(7).shuffle(shuffled)
    first, again = evaluation(varied), evaluation(shuffled)
    assert html(first) == html(again)
    assert markdown(first) == markdown(again)
    assert headline(first) == headline(again)


HOSTILE = '<script>alert("x")</script>|`*_[a](http://evil.example)&amp;'


@pytest.mark.parametrize(
    "field", ["way", "workload", "commit", "order", "system", "trigger", "swept", "outcome", "run"]
)
def test_text_of_the_data_is_never_markup(field: str) -> None:
    made = line(random.Random(1), "E4" if field == "order" else "E1", "godwit", "live", 0, at=1)
    others = [{**made, "order": "sudden"}] if field == "order" else []  # where all have one order, it is not shown
    found = evaluation([{**made, field: HOSTILE}, *others])
    reader = read_page(html(found))
    assert html(found).count("<script>") == 1
    assert not any("evil" in link for link in reader.followed)
    text = markdown(found)
    assert "<script" not in text
    assert "](http://evil" not in re.sub(r"\\.", "", text)
    shown = "".join(html(found).split()) + "".join(unescape(html(found)).split())
    assert "evil.example" in shown, "it is shown all the same"


def test_names_of_phases_and_parts_are_never_markup() -> None:
    told = {"spans": [[HOSTILE, 0.0, 0.1]], "microseconds_per_row": {HOSTILE: 1.0}, "machine": {"cpu": HOSTILE}}
    found = evaluation([line(random.Random(1), "E6", "godwit", "native", 0, **told)])
    read_page(html(found))
    assert html(found).count("<script>") == 1
    assert "<script" not in markdown(found)


def test_every_picture_is_well_formed_and_says_what_it_shows(page: str) -> None:
    found = drawn(page)
    assert len(found) > 40
    assert all(picture.get("aria-label") for picture in found)


def test_nothing_in_a_picture_lies_outside_it(page: str) -> None:
    for picture in drawn(page):
        height = float(str(picture.get("viewBox")).split()[3])
        for element in picture.iter():
            for name in ("x", "x1", "x2"):
                assert 0 <= float(element.get(name, 0)) <= 360, element.attrib
            for name in ("y", "y1", "y2"):
                assert 0 <= float(element.get(name, 0)) <= height, element.attrib


def test_axes_have_units(page: str) -> None:
    for picture in drawn(page):
        labels = [element.text for element in picture.iter("text") if element.get("class") == "label"]
        assert labels, picture.get("aria-label")
        assert all(labels)


def test_numbers_along_an_axis_do_not_overlap(page: str) -> None:
    for picture in drawn(page):
        rows: dict[float, list[tuple[float, float]]] = {}
        for element in picture.iter("text"):
            if element.get("class") == "tick" and element.get("text-anchor") == "middle":
                half = len(element.text or "") * 6 / 2
                x = float(element.get("x", 0))
                rows.setdefault(float(element.get("y", 0)), []).append((x - half, x + half))
        for places in rows.values():
            ordered = sorted(places)
            assert all(left[1] <= right[0] for left, right in pairwise(ordered))


def test_a_bar_is_as_long_as_its_figure_on_a_logarithmic_scale(lines: list[dict[str, Any]], page: str) -> None:
    picture = next(each for each in drawn(page) if each.get("aria-label") == "peak jitter (p99) by protocol")
    widths = {
        str(bar[0].text).split(":")[0]: float(bar.get("width", 0))
        for bar in picture.iter("rect")
        if str(bar.get("class")).startswith("bar")
    }
    medians = {
        way: statistics.median(
            each["peak_jitter_p99_ms"]
            for each in lines
            if (each["experiment"], each["workload"], each["way"]) == ("E1", "key-count", way)
        )
        for way in ("live", "pause", "restart")
    }
    scale = Scale.around([10.0, 10_000.0], 0.0, 170.0, log=True)
    for way, median in medians.items():
        assert widths[way] == pytest.approx(scale(median), abs=0.2)


def test_a_protocol_has_its_colour_everywhere(page: str) -> None:
    colours: dict[str, set[str]] = {}
    for picture in drawn(page):
        for element in picture.iter():
            classes = str(element.get("class", "")).split()
            if len(element) and element[0].tag == "title" and classes[0] in ("bar", "mark"):
                name = str(element[0].text).split(":")[0].split(",")[0]
                colours.setdefault(name, set()).update(each for each in classes if re.fullmatch(r"w\d+", each))
    assert colours["live"] == {"w0"}
    assert colours["restart"] == {"w6"}
    assert all(len(found) == 1 for name, found in colours.items() if name in MAGNITUDES_BY_LABEL)


MAGNITUDES_BY_LABEL = {Way(*way).label for way in MAGNITUDES}


def test_every_colour_of_a_way_is_in_the_style(page: str) -> None:
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)[0]
    for way in (*(Way(*each) for each in WAYS), Way("godwit", "teleport")):
        assert f".{Look.of(way).class_} {{" in style


def test_time_in_which_no_row_left_is_a_gap_in_the_line(page: str) -> None:
    restart = next(each for each in drawn(page) if each.get("aria-label") == "Latency of restart around the migration")
    live = next(each for each in drawn(page) if each.get("aria-label") == "Latency of live around the migration")
    pieces = {
        name: [
            str(found.get("d")).count("M")
            for found in picture.iter("path")
            if found.get("class", "").startswith("line")
        ]
        for name, picture in (("restart", restart), ("live", live))
    }
    assert pieces == {"restart": [2, 2], "live": [1, 1]}


def test_the_timeline_is_that_of_the_median_run() -> None:
    chance = random.Random(2)
    made = []
    for repeat, jitter in enumerate((30.0, 900.0, 60.0)):
        each = line(
            chance, "E1", "godwit", "live", repeat, peak_jitter_p99_ms=jitter, spans=[["copy", 0, 0.1 + repeat]]
        )
        made.append({**each, "timeline": timeline(chance, jitter, 0.0)})
    picture = next(each for each in drawn(html(evaluation(made))) if "around" in str(each.get("aria-label")))
    titles = [element.text for element in picture.iter("title")]
    assert titles == ["copy: 0.000 to 2.100 s"]


# -- headlines -----------------------------------------------------------------------------------------------------------


def test_the_headlines_quote_medians(lines: list[dict[str, Any]]) -> None:
    told = headline(evaluation(lines))
    assert 3 <= len(told) <= 5
    live = [each for each in lines if (each["experiment"], each["way"]) == ("E1", "live")]
    by_workload = {
        name: [each for each in live if each["workload"] == name]
        for name in sorted({each["workload"] for each in live})
    }
    steadiest = min(by_workload.values(), key=lambda runs: statistics.median(run["steady_mean_ms"] for run in runs))
    values = [run["peak_jitter_p99_ms"] for run in steadiest]
    quoted = re.findall(r"peak jitter: live ([^,]*),", told[1])[0]
    assert numbers(quoted) == pytest.approx(expected(values), rel=0.01)
    assert steadiest[0]["workload"] in told[1]
    assert "Flink adaptive" in told[2]
    assert "standby" in told[3]
    assert told[4].startswith("throughput at best: ")


# -- drawing -------------------------------------------------------------------------------------------------------------


def test_a_logarithmic_scale_has_a_place_for_zero_below_all_else() -> None:
    scale = Scale.around([0.0, 3.0, 700.0], 100.0, 0.0, log=True)
    assert (scale.low, scale.high) == (1.0, 1000.0)
    assert scale(0.0) == 100.0
    assert scale(1.0) < 100.0
    assert scale(1000.0) == 0.0
    assert scale(10.0) - scale(100.0) == pytest.approx(scale(1.0) - scale(10.0))


@pytest.mark.parametrize("high", [0.3, 1.0, 7.0, 42.0, 1_650.0])
def test_a_linear_scale_has_a_few_round_ticks_inside_it(high: float) -> None:
    ticks = Scale.around([high], 0.0, 100.0, log=False).ticks()
    assert 3 <= len(ticks) <= 8
    assert ticks[0] == 0.0
    assert ticks[-1] <= high + 1e-9


def test_labels_that_would_overlap_are_left_out() -> None:
    assert spaced([(0.0, "1,000"), (10.0, "2,000"), (80.0, "5,000")]) == [(0.0, "1,000"), (80.0, "5,000")]


def test_a_path_breaks_where_there_is_nothing() -> None:
    assert path([(0.0, 1.0), (2.0, 3.0), None, (4.0, 5.0)], "line") == '<path d="M0 1h0L2 3M4 5h0" class="line"/>'

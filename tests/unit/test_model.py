"""The pure decisions: which batch a request is of, what the watermark is, who owns a key."""

from __future__ import annotations

import pytest

from godwit.model.progress import FENCED_RUNS_MAX, BatchRef, Progress, Verdict
from godwit.model.routing import Routing
from godwit.model.watermark import BatchWatermark, Watermark


def at(batch: int, run: str = "run-1", query: str = "q") -> Progress:
    return Progress().admit(BatchRef(query, run, 0)).advance(batch)


@pytest.mark.parametrize(
    ("request_", "verdict"),
    [
        (BatchRef("q", "run-1", 5), Verdict.SAME),
        (BatchRef("q", "run-1", 6), Verdict.NEXT),
        (BatchRef("q", "run-1", 8), Verdict.SKIPPED),
        (BatchRef("q", "run-1", 4), Verdict.STALE_BATCH),
        (BatchRef("q", "run-2", 5), Verdict.UNKNOWN_RUN),
        (BatchRef("other", "run-1", 5), Verdict.OTHER_QUERY),
    ],
)
def test_a_request_is_judged_by_query_then_run_then_batch(request_: BatchRef, verdict: Verdict) -> None:
    assert at(5).judge(request_) is verdict


def test_a_fresh_instance_knows_no_run() -> None:
    assert Progress().judge(BatchRef("q", "run-1", 0)) is Verdict.UNKNOWN_RUN


def test_a_newer_run_fences_the_older_one() -> None:
    progress = at(5).admit(BatchRef("q", "run-2", 5))
    assert progress.judge(BatchRef("q", "run-1", 5)) is Verdict.STALE_RUN
    assert progress.judge(BatchRef("q", "run-1", 6)) is Verdict.STALE_RUN
    assert progress.judge(BatchRef("q", "run-2", 5)) is Verdict.SAME


def test_only_the_last_fenced_runs_are_kept() -> None:
    progress = at(0, "run-0")
    for number in range(1, FENCED_RUNS_MAX + 5):
        progress = progress.admit(BatchRef("q", f"run-{number}", 0))
    assert len(progress.fenced) == FENCED_RUNS_MAX
    assert progress.fenced[-1] == f"run-{FENCED_RUNS_MAX + 3}"


def test_progress_survives_its_dictionary_form() -> None:
    progress = at(7).admit(BatchRef("q", "run-2", 7))
    assert Progress.from_dict(progress.to_dict()) == progress


def test_event_times_of_a_batch_count_from_the_next_batch_on() -> None:
    watermark = Watermark(delay_ms=10)
    watermark.next_batch()
    watermark.report("0", 100)
    assert (watermark.late, watermark.eviction) == (0, 0)
    assert watermark.upcoming() == 90
    watermark.next_batch()
    assert (watermark.late, watermark.eviction) == (0, 90)
    watermark.next_batch()
    assert (watermark.late, watermark.eviction) == (90, 90)


def test_the_fastest_lane_leads_as_in_spark() -> None:
    watermark = Watermark(delay_ms=0)
    watermark.report("0", 100)
    watermark.report("1", 300)
    watermark.next_batch()
    assert watermark.eviction == 300


def test_the_slowest_lane_holds_time_back_with_policy_min() -> None:
    watermark = Watermark(delay_ms=0, policy="min")
    watermark.report("0", 100)
    watermark.report("1", 300)
    watermark.next_batch()
    assert watermark.eviction == 100


def test_the_watermark_of_the_query_is_what_spark_says_and_nothing_else() -> None:
    watermark = Watermark(delay_ms=0, policy="query")
    watermark.report("0", 900)
    assert (watermark.lanes, watermark.reported, watermark.upcoming()) == ({}, {}, 0)
    watermark.next_batch(BatchWatermark(300, 200))
    assert (watermark.eviction, watermark.late) == (300, 200)
    watermark.next_batch()  # the batch came from another host, which says the rest
    assert (watermark.eviction, watermark.late) == (300, 300)


def test_the_watermark_of_the_query_does_not_go_back_either() -> None:
    watermark = Watermark(delay_ms=0, policy="query", eviction=500, late=400)
    watermark.next_batch(BatchWatermark(300, 200))
    assert (watermark.eviction, watermark.late) == (500, 400)


def test_a_host_in_the_batch_before_brings_its_watermark_as_the_limit_of_late_rows() -> None:
    watermark = Watermark(delay_ms=0, policy="query", eviction=300, late=100, lanes={"0": 900})
    watermark.merge(Watermark(0, "query", eviction=200, late=100).to_dict(), same_batch=False)
    assert (watermark.eviction, watermark.late) == (300, 200)


def test_the_watermark_never_goes_back() -> None:
    watermark = Watermark(delay_ms=0)
    watermark.report("0", 100)
    watermark.next_batch()
    watermark.report("0", 50)
    watermark.next_batch()
    assert watermark.eviction == 100


def test_a_lane_without_event_times_says_nothing() -> None:
    watermark = Watermark(delay_ms=0)
    watermark.report("0", None)
    watermark.next_batch()
    assert watermark.eviction == 0
    assert watermark.lanes == {}


def test_a_watermark_is_restored_whole() -> None:
    watermark = Watermark(delay_ms=5)
    watermark.report("0", 100)
    watermark.next_batch()
    watermark.report("1", 200)
    copy = Watermark(delay_ms=5)
    copy.restore(watermark.to_dict())
    assert copy == watermark


@pytest.mark.parametrize("hosts", [1, 2, 3, 7])
def test_groups_are_spread_evenly(hosts: int) -> None:
    routing = Routing.spread([f"host-{i}" for i in range(hosts)])
    sizes = [len(routing.groups_of(host)) for host in routing.hosts]
    assert sum(sizes) == 1024
    assert max(sizes) - min(sizes) <= 1


def test_a_negative_hash_has_an_owner_too() -> None:
    routing = Routing.spread(["host-0", "host-1"])
    assert routing.group(-1) == 1023
    assert routing.owner(-1) == "host-1"


def test_routing_survives_its_dictionary_form() -> None:
    routing = Routing.spread(["host-0", "host-1"], groups=16)
    assert Routing.from_dict(routing.to_dict()) == routing

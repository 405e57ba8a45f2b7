"""A step that its origin has released while the two hosts were in different runs: the target takes it, for nobody else owns it.

`live-unordered` releases a step before the target has accepted it. A target that declined the step would leave its keys
without an owner: the next batch, which could change that, would wait for those keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from godwit.errors import HostUnavailable, StaleRun
from godwit.model.progress import BatchRef, Progress
from godwit.runtime.messages import Admit
from godwit.spark.checkpoint.run_admission import RunAdmission
from tests.unit.pair import ALL, Pair, Side, joined, kind_is
from tests.unit.test_instance import welcome


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with joined(tmp_path) as pair:
        yield pair


def open_batch(side: Side, run: str, batch: int) -> None:
    with side.shared.lock:
        side.shared.instance.open(BatchRef("q", run, batch), "0", 0, welcome)


def released_to(pair: Pair) -> Side:
    report = pair.moved("live-unordered")
    assert (report.done, report.dropped) == (1, 0)
    assert pair.b.owned() == ALL
    return pair.b


# -- initial state ---------------------------------------------------------------------------------------------------


def test_a_target_that_the_job_of_the_initial_state_has_not_reached(pair: Pair) -> None:
    """Before: the target declined the step for ever, and the job waited for the owner of the keys."""
    pair.a.shared.instance.begin_initial("job-1")
    target = released_to(pair).shared.instance
    assert target.progress.run == "job-1"
    target.begin_initial("job-1")
    assert target.progress.attempt == 1, "the job does not begin twice"


def test_an_origin_that_the_job_of_the_initial_state_has_not_reached(pair: Pair) -> None:
    pair.b.shared.instance.begin_initial("job-1")
    assert released_to(pair).shared.instance.progress.run == "job-1"


@pytest.mark.parametrize(("origin", "target"), [(["job-1", "job-2"], ["job-1"]), (["job-1"], ["job-1", "job-2"])])
def test_one_host_has_seen_the_job_begin_again(pair: Pair, origin: list[str], target: list[str]) -> None:
    for side, jobs in ((pair.a, origin), (pair.b, target)):
        for job in jobs:
            side.shared.instance.begin_initial(job)
    progress = released_to(pair).shared.instance.progress
    assert (progress.run, progress.fenced) == ("job-2", ("job-1",))


# -- runs of which neither host knows the other ----------------------------------------------------------------------


def unrelated(pair: Pair) -> None:
    """Key 1 has 3 by the first batch, and 5 more by what the origin has applied of the second."""
    pair.a.put_rows(0, [0], (1, 3), run="run-1")
    pair.a.shared.instance.finish(BatchRef("q", "run-1", 0), "0", 1, None, 1)
    open_batch(pair.b, "run-1", 0)
    pair.a.put_rows(1, [0], (1, 5), run="run-2")
    open_batch(pair.b, "run-3", 1)
    assert pair.a.shared.instance.progress.unrelated(pair.b.shared.instance.progress)


def only(active: str, pair: Pair) -> None:
    def admit(request: Admit) -> None:
        if request.run != active:
            raise StaleRun(f"{request.run} is no longer active")

    pair.admit = admit


def test_the_origins_run_is_the_later_one(pair: Pair) -> None:
    unrelated(pair)
    only("run-2", pair)
    target = released_to(pair)
    assert target.totals() == {1: 8}
    assert target.shared.instance.progress.run == "run-2"
    assert target.put_rows(1, [0], (1, 5), run="run-2") == [(1, 8)], "a row that comes again is known"


def test_the_targets_run_is_the_later_one(pair: Pair) -> None:
    unrelated(pair)
    only("run-3", pair)
    target = released_to(pair)
    assert target.totals() == {1: 3}, "what the earlier run has applied of the batch is reverted"
    assert target.put_rows(1, [0], (1, 5), run="run-3") == [(1, 8)]
    pair.b.restart()
    assert "run-2" in pair.b.shared.instance.progress.fenced


def test_a_driver_that_cannot_be_asked_is_asked_again(pair: Pair) -> None:
    unrelated(pair)
    only("run-2", pair)
    admit, away = pair.admit, [True, True]

    def sometimes(request: Admit) -> None:
        if away:
            away.pop()
            raise HostUnavailable("the driver is away")
        admit(request)

    pair.admit = sometimes
    assert released_to(pair).totals() == {1: 8}
    assert not away


def test_a_step_that_is_not_released_stays_until_the_next_batch(pair: Pair) -> None:
    """The origin still owns it, and nothing waits."""
    unrelated(pair)
    pair.migrate("live")
    pair.wait_connection(1).back.wait_sent("step_declined")
    assert pair.a.put_rows(1, [0], (1, 5), run="run-2") == [(1, 8)]
    next_batch(pair)
    assert pair.wait_ended().done == 1
    assert pair.b.totals() == {1: 9}


def test_a_target_that_has_not_put_rows_into_its_ledger_declines(pair: Pair) -> None:
    """Before: when the target came to know the origin's run later, it took the step, and applied these rows a second time."""
    unrelated(pair)
    pair.there = kind_is("step_end")
    pair.migrate("live")
    connection = pair.wait_connection(1)
    connection.there.wait_stopped()
    open_batch(pair.b, "run-2", 1)
    connection.there.flow()
    connection.back.wait_sent("step_declined")
    assert pair.a.put_rows(1, [0], (1, 5), run="run-2") == [(1, 8)]
    next_batch(pair)
    assert pair.wait_ended().done == 1
    assert pair.b.totals() == {1: 9}


def next_batch(pair: Pair) -> None:
    """One more for key 1."""
    pair.a.shared.instance.finish(BatchRef("q", "run-2", 1), "0", 1, None, 1)
    pair.a.put_rows(2, [0], (1, 1), run="run-2")


def test_the_driver_knows_which_job_loads_the_initial_state() -> None:
    admission = RunAdmission(cast("Any", None), accept_gaps=False)
    admission.initial_runs["sum"] = "job-2"
    admission.admit(Admit("sum", "", "job-2", -1, -1, False))
    with pytest.raises(StaleRun, match="another job loads"):
        admission.admit(Admit("sum", "", "job-1", -1, -1, False))


# -- the comparison --------------------------------------------------------------------------------------------------


def test_what_two_hosts_know_of_each_others_runs() -> None:
    none, first = Progress(), Progress().initialised_by("job-1")
    second, other = first.initialised_by("job-2"), first.initialised_by("job-3")
    assert none.behind(first)
    assert first.behind(second)
    assert not second.behind(first)
    assert not first.behind(none)
    assert second.unrelated(other)
    assert other.unrelated(second)
    assert not other.fence("job-2").unrelated(second)
    assert not none.unrelated(first)
    assert not first.unrelated(first)
    assert not Progress("q", "run-2", 3).unrelated(Progress("q", "run-3", 4))
    assert first.initialised_by("job-3", ("job-2",)).fenced == ("job-1", "job-2")

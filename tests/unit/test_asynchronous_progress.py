"""What proves that a row is committed, if Spark's log names only some of the batches; and which rows are kept until then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.errors import CheckpointMismatch, NotReplayable, UnsupportedQuery
from godwit.model.progress import BatchRef, Progress, Verdict
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.instance.instance import Instance
from godwit.runtime.messages import Admit, NoteCommitted
from godwit.spark.checkpoint.run_admission import Admitted, RunAdmission
from godwit.spark.commit_watch import CommitLogs, CommitWatch, WatchedRun
from godwit.state import ledger_spill
from godwit.state.ledger import COLUMN_LANE, Entry, Ledger, in_row_order, with_rows
from godwit.state.reached import Reached
from tests.unit.test_instance import Sum, instance_of, rows, totals, welcome

LANE = f"{COLUMN_LANE}7"
OUTPUT = pa.schema([("n", pa.int64())])


def ref(run: str, batch: int) -> BatchRef:
    return BatchRef("q", run, batch)


def in_run(run: str, first: int, batch: int, before: Progress | None = None) -> Progress:
    """The progress after these batches of a run whose progress Spark tracks asynchronously."""
    progress = (before or Progress()).admit(ref(run, first), asynchronous=True)
    for number in range(first, batch + 1):
        progress = progress.advance(number)
    return progress


# -- progress --------------------------------------------------------------------------------------------------------


def test_a_later_run_begins_at_a_batch_whose_number_was_used_before() -> None:
    progress = in_run("run-1", 0, 9).know_committed(4)
    again = progress.admit(ref("run-2", 5), asynchronous=True)
    assert again.judge(ref("run-2", 5)) is Verdict.NEXT
    again = again.advance(5)
    assert (again.batch, again.current) == (9, 5), "the number of the state never goes back"
    assert again.judge(ref("run-2", 5)) is Verdict.SAME
    assert again.judge(ref("run-2", 4)) is Verdict.STALE_BATCH
    assert again.judge(ref("run-2", 6)) is Verdict.NEXT
    assert again.judge(ref("run-1", 10)) is Verdict.STALE_RUN
    for number in range(6, 11):
        again = again.advance(number)
    assert (again.batch, again.current, again.reading) == (10, 10, None)


def test_progress_survives_its_dictionary_form_and_keeps_the_old_form_without_the_option() -> None:
    progress = in_run("run-2", 5, 6, in_run("run-1", 0, 9))
    assert Progress.from_dict(progress.to_dict()) == progress
    assert progress.reading == 6
    plain = Progress().admit(ref("run-1", 0)).advance(3)
    assert plain.to_dict().keys() == {"query", "run", "batch", "fenced", "attempt"}


def test_rows_outlast_their_batch_until_a_run_without_the_option_finds_none_left() -> None:
    progress = in_run("run-1", 0, 9)
    assert progress.admit(ref("run-2", 10)).lasting, "rows are left"
    assert progress.admit(ref("run-2", 7), drained=True).lasting, "batches come again"
    assert progress.admit(ref("run-2", 10), asynchronous=True, drained=True).lasting
    assert not progress.admit(ref("run-2", 10), drained=True).lasting


def test_an_instance_takes_up_the_later_run_of_another_one_in_whatever_batch_that_is() -> None:
    own, other = in_run("run-1", 0, 9), in_run("run-2", 5, 6, in_run("run-1", 0, 8))
    assert own.behind(other)
    assert not other.behind(own)
    after = own.follow(other)
    assert (after.run, after.current, after.batch) == ("run-2", 6, 9)
    assert after.judge(ref("run-1", 9)) is Verdict.STALE_RUN


def test_runs_that_do_not_know_each_other_do_no_harm_where_rows_are_recognised() -> None:
    own, other = in_run("run-2", 9, 9, in_run("run-1", 0, 9)), in_run("run-3", 9, 9, in_run("run-0", 0, 9))
    assert not own.unrelated(other)
    assert replace(own, committed=None).unrelated(replace(other, committed=None))


# -- how far batches have read ---------------------------------------------------------------------------------------


def test_a_commit_says_up_to_which_row_each_lane_is_committed() -> None:
    reached = Reached()
    for lane, batch, row in (("a", 3, 10), ("a", 3, 12), ("a", 5, 20), ("b", 4, 7)):
        reached.note(lane, batch, row)
    assert dict(reached.committed(2)) == {}
    assert dict(reached.committed(4)) == {"a": 12, "b": 7}
    assert dict(reached.committed(4)) == {"a": 12, "b": 7}, "for rows that came late from another host"
    assert dict(reached.committed(5)) == {"a": 20, "b": 7}
    reached.clear()
    assert dict(reached.committed(9)) == {}, "a later run has not read the lanes yet"


# -- the ledger ------------------------------------------------------------------------------------------------------


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def entry(*numbers: int, batch: int = -1) -> Entry:
    outputs = pa.record_batch([pa.array(numbers, pa.int64())] * 2, schema=with_rows(OUTPUT))
    return Entry(ints(*numbers), ints(*(7 for _ in numbers)), outputs, batch=batch)


def known(ledger: Ledger, upto: int) -> list[int]:
    return in_row_order([entry().outputs, *ledger.recorded(LANE, np.arange(upto))]).column("n").to_pylist()


@pytest.mark.parametrize("spilled", [False, True])
def test_rows_of_batches_that_the_log_names_are_dropped_and_all_others_stay(spilled: bool) -> None:
    ledger = Ledger(OUTPUT)
    for batch, numbers in ((1, (0, 1)), (2, (2, 3, 4)), (3, (5,))):
        ledger.batch = batch
        ledger.record(LANE, entry(*numbers))
        ledger.reached.note(LANE, batch, numbers[-1])
        ledger.next_batch()
        if spilled:
            ledger.memory_bytes_max = 0
            ledger.make_room()
    ledger.drop_committed(2)
    assert known(ledger, 9) == [5]
    assert ledger.oldest_batch == 3
    ledger.drop_committed(3)
    assert not ledger.lanes
    assert ledger.oldest_batch is None


def test_an_entry_that_a_commit_cuts_keeps_the_rows_behind_it() -> None:
    ledger = Ledger(OUTPUT)
    ledger.record(LANE, entry(0, 1, 2, 3, batch=1))
    ledger.reached.note(LANE, 1, 2)  # a later run has read up to row 2 in its batch 1
    ledger.drop_committed(1)
    assert known(ledger, 9) == [3]
    unseen = ledger.unseen(LANE, ints(3, 4), ints(7, 7))
    assert unseen is not None
    assert unseen.tolist() == [False, True]


def test_the_files_of_a_ledger_are_given_back_as_its_rows_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a query that runs for ever would fill the disk: its ledger is never empty."""
    monkeypatch.setattr(ledger_spill, "SCRATCH_BYTES", 1)
    ledger = Ledger(OUTPUT, memory_bytes_max=0)
    most = 0
    for batch in range(30):
        ledger.record(LANE, entry(batch, batch=batch))
        ledger.reached.note(LANE, batch, batch)
        ledger.make_room()
        ledger.drop_committed(batch - 2)
        most = max(most, ledger.disk_bytes)
    ledger.drop_committed(28)
    assert ledger.row_count == 1
    assert 0 < ledger.disk_bytes <= most < 30 * ledger.disk_bytes / 4


def test_outputs_of_an_earlier_schema_are_never_given_as_none() -> None:
    ledger = Ledger(OUTPUT)
    ledger.record(LANE, entry(0, 1))
    ledger.redefine(pa.schema([("other", pa.string())]))
    with pytest.raises(NotReplayable, match="columns of an earlier definition"):
        ledger.recorded(LANE, ints(1, 2))
    assert ledger.recorded(LANE, ints(2, 3)) == []


# -- an instance -----------------------------------------------------------------------------------------------------


def with_option(*_: Any) -> bool:
    """Every run is the newest, and Spark tracks its progress asynchronously."""
    return True


def opened(instance: Instance, request: BatchRef, admit: Any = with_option) -> None:
    instance.open(request, "0", 0, admit)


def applied(instance: Instance, request: BatchRef, first: int, *values: int) -> list[int]:
    """The sum after each of these rows of one key."""
    return totals(instance.apply(request, LANE, Chunk(*rows(*((1, 0, value) for value in values), first=first))))


def test_a_run_that_cuts_batches_in_other_places_is_answered_with_what_was_said_before() -> None:
    instance = instance_of(Sum())
    for batch in range(4):
        opened(instance, ref("run-1", batch))
        assert applied(instance, ref("run-1", batch), 2 * batch, 1, 1) == [2 * batch + 2] * 2
    for batch, first, values in ((1, 2, [1] * 3), (2, 5, [1] * 5)):
        opened(instance, ref("run-2", batch))
        said = applied(instance, ref("run-2", batch), first, *values)
        assert said[:3] == ([4, 4, 6] if batch == 1 else [6, 8, 8]), "by the rows that run-1 had applied"
    assert said[3:] == [10, 10]
    assert instance.state.key_count == 1


def test_a_batch_of_an_earlier_run_is_not_said_to_be_complete() -> None:
    """It may have been completed at some hosts only. A router took the others for hosts that had lost the end of their log."""
    instance = instance_of(Sum())
    for batch in range(2):
        begun = instance.open(ref("run-1", batch), "0", 0, with_option).begun
        assert begun["before"] is None
    for batch in range(3):
        begun = instance.open(ref("run-2", batch), "0", 0, with_option).begun
        assert begun["before"] is None
    plain = instance_of(Sum())
    for batch in range(2):
        begun = plain.open(ref("run-1", batch), "0", 0, lambda *_: False).begun
    assert begun["before"] == 0


def test_a_later_run_may_bring_a_row_with_other_values_and_within_a_run_that_is_refused() -> None:
    """A column with current_timestamp has another value in every batch. The row was applied once, with its first value."""
    instance = instance_of(Sum())

    def checked(check: int) -> Chunk:
        return replace(Chunk(*rows((1, 0, 5))), checks=np.array([check], np.int32))

    opened(instance, ref("run-1", 0))
    instance.apply(ref("run-1", 0), LANE, checked(1))
    opened(instance, ref("run-2", 0))
    assert totals(instance.apply(ref("run-2", 0), LANE, checked(2))) == [5]
    later = replace(checked(3), rows=ints(1))
    assert totals(instance.apply(ref("run-2", 0), LANE, later)) == [10]
    with pytest.raises(NotReplayable, match="other values"):
        instance.apply(ref("run-2", 0), LANE, replace(later, checks=np.array([4], np.int32)))


def test_a_batch_that_was_refused_goes_well_in_a_later_run_that_brings_its_rows_as_they_were() -> None:
    """Nothing is reverted, so the refusal must not outlive the run."""
    instance = instance_of(Sum())
    opened(instance, ref("run-1", 0))
    applied(instance, ref("run-1", 0), 0, 1, 1)
    other_key = Chunk(*rows((2, 0, 1)))
    with pytest.raises(NotReplayable, match="another key"):
        instance.apply(ref("run-1", 0), LANE, other_key)
    with pytest.raises(NotReplayable, match="cannot be completed in this run"):
        applied(instance, ref("run-1", 0), 2, 1)
    opened(instance, ref("run-2", 0))
    assert applied(instance, ref("run-2", 0), 0, 1, 1, 1) == [2, 2, 3]


def test_a_commit_of_an_earlier_run_drops_nothing_that_the_present_run_may_read_again() -> None:
    instance = instance_of(Sum())
    for batch in range(3):
        opened(instance, ref("run-1", batch))
        applied(instance, ref("run-1", batch), batch, 1)
    opened(instance, ref("run-2", 1))
    instance.batches.know_committed("run-1", 2)
    instance.batches.know_committed("run-2", 1)  # which has read nothing yet
    assert instance.ledger.row_count == 3
    applied(instance, ref("run-2", 1), 1, 1)
    instance.batches.know_committed("run-2", 1)
    assert instance.ledger.row_count == 1


def test_spark_may_not_go_back_behind_what_its_log_named() -> None:
    instance = instance_of(Sum())
    for batch in range(6):
        opened(instance, ref("run-1", batch))
    instance.batches.know_committed("run-1", 3)
    with pytest.raises(CheckpointMismatch, match="Spark starts again at batch 3, but this state already holds batch 3"):
        opened(instance, ref("run-2", 3))
    opened(instance, ref("run-2", 4))


def test_a_run_without_the_option_after_one_with_it_knows_the_rows_too() -> None:
    instance = instance_of(Sum())
    for batch in range(3):
        opened(instance, ref("run-1", batch))
        applied(instance, ref("run-1", batch), batch, 1)
    opened(instance, ref("run-2", 1), welcome)
    assert applied(instance, ref("run-2", 1), 1, 1, 1) == [2, 3]
    opened(instance, ref("run-2", 2), welcome)  # proves that batch 1 is committed
    assert instance.ledger.row_count == 0
    opened(instance, ref("run-3", 3), welcome)
    assert not instance.progress.lasting, "from here on a run that begins again reverts, as ever"


def test_a_batch_that_failed_before_the_option_was_set_is_reverted_once_more() -> None:
    instance = instance_of(Sum())
    opened(instance, ref("run-1", 0), welcome)
    applied(instance, ref("run-1", 0), 0, 5)
    opened(instance, ref("run-2", 0))
    assert instance.state.key_count == 0
    assert applied(instance, ref("run-2", 0), 0, 7) == [7]
    assert instance.progress.lasting


# -- who is refused --------------------------------------------------------------------------------------------------

KNOWN = Admitted(by_columns=True)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (Admitted(), "known by their place in the batch"),
        (replace(KNOWN, by_key=True), "partitioned by key"),
        (replace(KNOWN, timers=True), "timers fire by the batch"),
        (replace(KNOWN, compared=True), "outputs may not be older than the watermark"),
        (replace(KNOWN, merges=True), "merged"),
    ],
)
def test_an_operator_that_would_not_recognise_rows_is_refused(facts: Admitted, why: str) -> None:
    admission = RunAdmission(None, False)  # type: ignore[arg-type]
    admission.operators["op"] = facts
    request = Admit("op", "q", "run-1", 1, 0, False)
    with pytest.raises(UnsupportedQuery, match=why) as refused:
        admission._check_recognised(request, True)
    assert "asyncProgressTrackingEnabled to false" in (refused.value.todo or "")
    admission._check_recognised(request, False)
    with pytest.raises(CheckpointMismatch, match="defined in another way since"):
        admission._check_recognised(replace(request, lasting=True), False)


def test_an_operator_whose_rows_are_known_by_columns_is_admitted() -> None:
    admission = RunAdmission(None, False)  # type: ignore[arg-type]
    admission.operators["op"] = KNOWN
    admission._check_recognised(Admit("op", "q", "run-1", 1, 0, False, lasting=True), True)


# -- hosts hear of commits -------------------------------------------------------------------------------------------


class Logs:
    """What Spark knows, as a test sets it."""

    def __init__(self) -> None:
        self.committed, self.active = 3, "run-1"
        self.told: list[NoteCommitted] = []

    def watch(self) -> CommitWatch:
        logs = CommitLogs(lambda _: self.committed, lambda _: self.active or None)
        return CommitWatch(logs, lambda: ["host-0"], lambda _, message: self.told.append(message))


RUN = WatchedRun("op", "q", "run-1")


def test_hosts_hear_of_each_batch_that_the_log_names_once() -> None:
    logs = Logs()
    watch = logs.watch()
    watch.begin(RUN, True)
    watch.look(RUN)
    watch.look(RUN)
    logs.committed = 5
    watch.look(RUN)
    watch.close()
    assert [message.batch for message in logs.told] == [3, 5]


def test_the_log_is_read_once_more_when_the_run_has_ended_but_not_for_the_run_after_it() -> None:
    logs = Logs()
    watch = logs.watch()
    watch.begin(RUN, True)
    logs.active = ""
    watch.look(RUN)
    assert [message.batch for message in logs.told] == [3]
    watch.begin(RUN, True)
    logs.active, logs.committed = "run-2", 9
    watch.look(RUN)
    watch.begin(WatchedRun("op", "q", "run-2"), False)
    logs.active = ""
    watch.look(RUN)
    watch.close()
    assert [message.batch for message in logs.told] == [3]

"""A batch that was applied in part and is run again, cut otherwise: the state is that of a run without any of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.errors import BatchIncomplete, CheckpointMismatch, NotReplayable
from godwit.model.progress import BatchRef
from godwit.runtime.durable.journal import Unwritten
from godwit.runtime.durable.work import Work
from godwit.state.keyed_state import KeyedState
from godwit.state.ledger import COLUMN_LANE, Ledger
from tests.property.reruns import CODEC, GROUPS, VARIABLES, Flock, Row, sequential

TEN: list[Row] = [(n % 3, n) for n in range(10)]
FIRST, AGAIN = BatchRef("q", "run-1", 1), BatchRef("q", "run-2", 1)

keys = st.integers(0, 5)
batches = st.lists(st.tuples(keys, st.one_of(st.none(), st.integers(0, 50))), min_size=1, max_size=8)
cuts = st.lists(st.integers(0, 2), min_size=8, max_size=8)
# What happens to the two hosts: a group moves, or a host restarts, with or without compaction.
events = st.lists(
    st.one_of(
        st.tuples(st.just("move"), st.integers(0, GROUPS - 1)),
        st.tuples(st.just("restart"), st.integers(0, 1), st.booleans()),
    ),
    max_size=3,
)


@pytest.fixture
def flock(tmp_path: Path) -> Any:
    made = Flock(tmp_path)
    made.run(BatchRef("q", "run-1", 0), [(0, 100), (1, 101)], [0] * 8)
    yield made
    made.close()


BEFORE: list[Row] = [(0, 100), (1, 101)]


def test_ten_rows_of_one_partition_come_again_as_six_and_four(flock: Flock) -> None:
    """Before: 14 rows were counted, and nothing was said."""
    flock.run(FIRST, TEN, [0] * 10, upto=10)
    flock.run(AGAIN, TEN, [0] * 6 + [1] * 4)
    assert flock.state() == sequential([*BEFORE, *TEN])
    flock.run(BatchRef("q", "run-2", 2), TEN, [0] * 10)
    assert flock.state() == sequential([*BEFORE, *TEN, *TEN])


def test_other_values_of_the_same_keys_come_instead(flock: Flock) -> None:
    others: list[Row] = [(key, None if value is None else value + 1000) for key, value in TEN]
    flock.run(FIRST, TEN, [0] * 10, upto=7)
    flock.run(AGAIN, others, [0] * 10)
    assert flock.state() == sequential([*BEFORE, *others])


def test_within_a_run_it_is_refused_before_the_commit_and_right_in_the_next_run(flock: Flock) -> None:
    flock.run(FIRST, TEN, [0] * 10, upto=10)
    with pytest.raises(NotReplayable, match="had 10 rows before and has 6 now"):
        flock.run(FIRST, TEN, [0] * 6 + [1] * 4)
    for again in ([0] * 10, [0] * 6 + [1] * 4):
        with pytest.raises(NotReplayable, match="cannot be completed in this run"):
            flock.run(FIRST, TEN, again)
    flock.run(AGAIN, TEN, [0] * 6 + [1] * 4)
    assert flock.state() == sequential([*BEFORE, *TEN])


@pytest.mark.parametrize("ended", [False, True])
def test_rows_that_come_in_another_order_are_refused_though_each_goes_to_a_host_that_has_not_seen_it(
    flock: Flock, ended: bool
) -> None:
    """Keys 0 and 1 are on two hosts, neither of which knows what the other has got under that number."""
    rows: list[Row] = [(0, 1), (1, 2)]
    flock.run(FIRST, rows, [0] * 2, upto=None if ended else 2)
    with pytest.raises(NotReplayable, match="2 rows of this partition were applied here, and only 1 were sent again"):
        flock.run(FIRST, rows[::-1], [0] * 2)
    flock.run(AGAIN, rows[::-1], [0] * 2)
    assert flock.state() == sequential([*BEFORE, *rows[::-1]])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_batch_that_was_refused_and_committed_all_the_same_ends_the_query(flock: Flock, restarts: bool) -> None:
    """As a foreachBatch does that catches the error and returns."""
    flock.run(FIRST, TEN, [0] * 10, upto=10)
    with pytest.raises(NotReplayable):
        flock.run(FIRST, TEN, [0] * 6 + [1] * 4)
    for host in flock.hosts if restarts else ():
        host.restart()
    with pytest.raises(BatchIncomplete, match="Spark has committed batch 1, but rows of it were refused"):
        flock.run(BatchRef("q", "run-1", 2), TEN, [0] * 10)

    def has_gap(request: BatchRef, last_batch: int, fresh: bool) -> None:
        assert last_batch == 0, "the batch that was refused does not count"
        raise CheckpointMismatch("a gap", todo="Restore both")

    spoiled = next(host for host in flock.hosts if host.instance.batch.spoiled)
    with pytest.raises(CheckpointMismatch, match=r"committed batch 1, but rows of it were refused.*Restore both"):
        spoiled.opened(BatchRef("q", "run-2", 2), "0", has_gap)


@pytest.mark.parametrize("lost", [True, False])
def test_a_batch_that_was_refused_stays_so_for_whoever_gets_the_keys(flock: Flock, lost: bool) -> None:
    """The rows that did not replay in one lane may be in another by now, which has ended."""
    flock.run(FIRST, TEN, [0] * 10)
    with pytest.raises(NotReplayable, match="another key"):
        flock.apply(FIRST, "0", [(0, (2, 0))])  # keys 0 and 2 are on one host
    (which,) = [at for at, host in enumerate(flock.hosts) if host.instance.batch.spoiled]
    if lost:
        flock.lose(which)
    else:
        for group in sorted(flock.hosts[which].own.mine().groups):
            assert flock.move(group)
        flock.hosts.pop(which).log.close()  # it owns nothing any more, and leaves
    with pytest.raises(NotReplayable, match="cannot be completed in this run"):
        flock.run(FIRST, TEN, [0] * 10)
    flock.run(AGAIN, TEN, [0] * 10)
    assert flock.state() == sequential([*BEFORE, *TEN])


def test_a_partition_that_was_read_in_part_only_is_not_taken_for_committed(flock: Flock) -> None:
    """As a foreachBatch does that looks at a few rows and returns."""
    flock.run(FIRST, TEN, [0] * 10, upto=4)
    with pytest.raises(BatchIncomplete, match=r"applied in part and never read to their end \(0\)"):
        flock.run(BatchRef("q", "run-1", 2), TEN, [0] * 10)


def test_a_partition_whose_rows_failed_is_not_taken_for_committed(flock: Flock) -> None:
    """As a foreachBatch does that catches what the processor has thrown and returns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "make_room", _fails)
        with pytest.raises(OSError, match="no room"):
            flock.run(FIRST, TEN, [0] * 10)
    with pytest.raises(BatchIncomplete, match=r"never read to their end \(0\)"):
        flock.run(BatchRef("q", "run-1", 2), TEN, [0] * 10)


def test_a_partition_whose_rows_failed_need_not_come_again_in_the_next_run(flock: Flock) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "make_room", _fails)
        with pytest.raises(OSError, match="no room"):
            flock.run(FIRST, TEN, [1] * 10)
    flock.run(AGAIN, TEN, [0] * 10)
    flock.run(BatchRef("q", "run-2", 2), TEN, [0] * 10)
    assert flock.state() == sequential([*BEFORE, *TEN, *TEN])


def _fails(*_: Any) -> None:
    raise OSError("no room")


def test_a_crash_before_the_revert_is_written_leaves_it_to_the_next_open(flock: Flock) -> None:
    flock.run(FIRST, TEN, [0] * 10, upto=10)
    host = flock.hosts[0]
    host.instance.durable.journal = Unwritten()
    host.instance.open(AGAIN, "0", 1_000, lambda *_: False)
    assert host.instance.progress.run == "run-2"
    host.restart()
    assert host.instance.progress.run == "run-1"
    flock.run(AGAIN, TEN, [0] * 6 + [1] * 4)
    assert flock.state() == sequential([*BEFORE, *TEN])


@pytest.mark.parametrize("compact", [False, True])
def test_what_was_reverted_stays_so_after_a_restart(flock: Flock, compact: bool) -> None:
    flock.run(FIRST, TEN, [0] * 10, upto=10)
    flock.run(AGAIN, TEN, [1] * 10, upto=3)
    for host in flock.hosts:
        host.restart(compact)
    assert flock.state() == sequential([*BEFORE, *TEN[:3]])
    flock.run(AGAIN, TEN, [1] * 10)
    assert flock.state() == sequential([*BEFORE, *TEN]), "in the same run the ledger answers"
    for host in flock.hosts:
        host.restart(compact)
    flock.run(BatchRef("q", "run-3", 1), TEN, [0] * 5 + [1] * 5)
    assert flock.state() == sequential([*BEFORE, *TEN])


def test_a_key_that_the_batch_had_removed_comes_back_where_it_was_moved_to(flock: Flock) -> None:
    """Before keys that a batch removes told their target what they had held, nobody could bring them back."""
    removed: list[Row] = [(0, None)]
    flock.run(FIRST, removed, [0], upto=1)
    for group in range(GROUPS):
        assert flock.move(group)
    flock.run(AGAIN, [(0, 1)], [0])
    assert flock.state() == sequential([*BEFORE, (0, 1)])


def other(flock: Flock, group: int) -> int:
    return 1 if group in flock.hosts[0].own.mine().groups else 0


@pytest.mark.parametrize("first", ["origin", "target"])
def test_a_group_moves_between_hosts_of_which_one_has_heard_of_the_new_run(flock: Flock, first: str) -> None:
    """The target that is behind reverts before it takes anything; one that is ahead reverts what it takes."""
    flock.run(FIRST, TEN, [0] * 10, upto=10)
    for group in range(GROUPS):
        ahead = flock.hosts[other(flock, group) if first == "target" else 1 - other(flock, group)]
        ahead.opened(AGAIN, "0")
        assert flock.move(group)
        if first == "origin":
            break  # both are in the new run now
    flock.run(AGAIN, TEN, [0] * 6 + [1] * 4)
    assert flock.state() == sequential([*BEFORE, *TEN])


def test_a_target_that_is_ahead_takes_over_no_rows_of_the_run_before(flock: Flock) -> None:
    flock.run(FIRST, TEN, [0] * 10, upto=10)
    flock.hosts[0].opened(AGAIN, "0")
    for group in flock.hosts[1].own.mine().groups:
        assert flock.move(group)
    assert flock.state() == sequential(BEFORE), "nothing of the batch is left, and no ledger says otherwise"
    assert not flock.hosts[0].instance.ledger.row_count


@pytest.mark.parametrize("ahead", ["lost", "heir", "neither", "both"])
def test_a_host_is_lost_while_a_later_run_has_reached_some_of_them(flock: Flock, ahead: str) -> None:
    flock.run(FIRST, TEN, [0] * 10, upto=10)
    heir, lost = flock.hosts
    for host in {"lost": [lost], "heir": [heir], "neither": [], "both": [heir, lost]}[ahead]:
        host.opened(AGAIN, "0")
    flock.lose(1)
    flock.run(AGAIN, TEN, [0] * 6 + [1] * 4)
    assert flock.state() == sequential([*BEFORE, *TEN])


def test_runs_that_do_not_know_of_each_other_hand_over_nothing(flock: Flock) -> None:
    """Each host has missed a run that the other was in: nobody can tell which of them is the newer."""
    flock.run(FIRST, TEN, [0] * 10, upto=10)
    flock.hosts[0].opened(BatchRef("q", "run-2", 1), "0")
    flock.hosts[1].opened(BatchRef("q", "run-3", 1), "0")
    assert not any(flock.move(group) for group in range(GROUPS))
    flock.run(BatchRef("q", "run-4", 1), TEN, [1] * 10)
    assert flock.state() == sequential([*BEFORE, *TEN])


def test_compaction_keeps_the_mark_that_began_the_batch_anew(flock: Flock) -> None:
    """The ledger parts before it count no more, those between it and a later mark do."""
    flock.run(FIRST, TEN, [0] * 10, upto=10)
    flock.run(AGAIN, TEN, [0] * 10, upto=5)
    for host in flock.hosts:
        host.instance.counters.late += 1
        host.exchange.worked(host.shared, lambda i: Work(parts=[i.mark_part()]))
        host.restart(compact=True)
    assert sum(host.instance.ledger.row_count for host in flock.hosts) == 5
    flock.run(AGAIN, TEN, [0] * 10)
    assert flock.state() == sequential([*BEFORE, *TEN])


@settings(max_examples=100)
@given(st.lists(keys, min_size=1, max_size=8), st.lists(cuts, min_size=1, max_size=3), st.integers(0, 8), events)
def test_rows_that_columns_tell_apart_are_counted_once_however_tasks_share_them(
    row_keys: list[int], shares: list[list[int]], upto: int, between: list[tuple[Any, ...]]
) -> None:
    """All within one run: each evaluation gives the rows of a lane to other tasks, and the first ends early."""
    rows: list[Row] = [(key, at) for at, key in enumerate(row_keys)]
    lanes = [f"{COLUMN_LANE}{key % 2}" for key in row_keys]
    with tempfile.TemporaryDirectory() as directory:
        flock = Flock(Path(directory))
        for evaluation, share in enumerate([shares[0], *shares]):
            tasks = sorted(set(share[: len(rows)]))
            flock.open(FIRST, map(str, tasks))
            for task in tasks:  # one after another, so rows of a lane come in another order than they have
                for at in [at for at in range(len(rows)) if share[at] == task][: None if evaluation else upto]:
                    flock.apply(FIRST, lanes[at], [(at, rows[at])])
            for host in flock.hosts if evaluation else ():
                for task in tasks:
                    host.exchange.worked(host.shared, lambda i, task=task: i.finish(FIRST, str(task), None, None))
            happen(flock, between)
        found = {key: sorted(seen) for key, (seen, _) in flock.state().items()}
        assert found == {key: sorted(seen) for key, (seen, _) in sequential(rows).items()}
        flock.run(BatchRef("q", "run-1", 2), rows, [0] * 8)
        flock.close()


MAP = st.tuples(st.sampled_from(["put", "remove", "clear"]), st.integers(0, 4), st.integers(0, 9))


@settings(max_examples=300)
@given(st.permutations(range(5)), st.lists(st.lists(MAP, min_size=1, max_size=4), max_size=4))
def test_a_map_comes_back_in_its_order(subs: list[int], after: list[Any]) -> None:
    state, key = KeyedState(VARIABLES, CODEC), (7,)

    def run(chunks: list[Any]) -> None:
        for chunk in chunks:
            for what, sub, value in chunk:
                match what:
                    case "put":
                        state.map_put(1, key, b"%d" % sub, b"%d" % value)
                    case "remove":
                        state.map_remove(1, key, b"%d" % sub)
                    case _:
                        state.map_clear(1, key)
            state.commit()

    run([[("put", sub, sub) for sub in subs[:3]]])
    state.settle()
    expected, count = list(state.map_items(1, key)), state.key_count
    run(after)
    touched = list(state.touched())
    state.stage_revert(touched)
    state.commit()
    state.settle_keys(touched)
    assert (list(state.map_items(1, key)), state.key_count) == (expected, count)
    assert not state.touched()


def happen(flock: Flock, what: list[tuple[Any, ...]]) -> None:
    for kind, which, *more in what:
        if kind == "move":
            flock.move(which)
        else:
            flock.hosts[which].restart(*more)


@settings(max_examples=60)
@given(
    batches,
    batches,
    batches,
    cuts,
    cuts,
    st.integers(0, 8),
    st.integers(0, 8),
    events,
    events,
    events,
    st.integers(0, 2),
)
def test_any_cut_after_any_part_of_the_batch_and_any_move_gives_the_state_of_a_sequential_run(
    first: list[Row],
    seen: list[Row],
    truth: list[Row],
    cut: list[int],
    other_cut: list[int],
    upto: int,
    again_upto: int,
    before: list[tuple[Any, ...]],
    between: list[tuple[Any, ...]],
    after: list[tuple[Any, ...]],
    opened: int,
) -> None:
    """`opened`: how many hosts the new run has reached when groups move: they stand in different runs then."""
    with tempfile.TemporaryDirectory() as directory:
        flock = Flock(Path(directory))
        flock.run(BatchRef("q", "run-1", 0), first, cut)
        flock.run(FIRST, seen, cut, upto=upto)
        happen(flock, before)
        for host in flock.hosts[:opened]:
            host.opened(AGAIN, "0")
        happen(flock, between)
        flock.run(AGAIN, truth, other_cut, upto=again_upto)
        happen(flock, after)
        flock.run(AGAIN, truth, other_cut)
        assert flock.state() == sequential([*first, *truth])
        flock.run(BatchRef("q", "run-2", 2), first, cut)
        assert flock.state() == sequential([*first, *truth, *first])
        flock.close()

"""Keys that are owned apart from their group and come back to it, and steps whose target is lost for good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.liveness.wills import write_will
from godwit.runtime.takeover import rescue
from tests.unit.pair import ALL, Pair, Side, joined, kind_is

KEYS = 40
FIRST = dict.fromkeys(range(KEYS), 1)
KEY = 7


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with joined(tmp_path) as pair:
        pair.a.put(0, *FIRST.items())
        yield pair


def apart(pair: Pair) -> Units:
    return Units.of(Unit("key", pair._codec.route_hash((KEY,))))


def group(pair: Pair) -> Units:
    return Units(frozenset({pair.group_of(KEY)}))


def owner(pair: Pair) -> Side:
    (found,) = [side for side in (pair.a, pair.b) if side.stand(next(iter(apart(pair)))).name == "MINE"]
    return found


@pytest.mark.parametrize("protocol", ["live", "live-unordered", "standby"])
def test_key_that_comes_back_while_its_group_is_being_copied_keeps_its_state(pair: Pair, protocol: str) -> None:
    """Before: the key was taken for one of the group, of which the copies were whole, and came to the target without state."""
    assert pair.moved("pause", apart(pair)).done == 1
    pair.there = kind_is("copy_marker")
    name = pair.migrate(protocol, group(pair))
    copying = pair.wait_connection(2)
    copying.there.wait_stopped()
    pair.there = lambda _: False
    assert pair.moved("pause", apart(pair), back=True).done == 1
    if protocol == "standby":
        pair.a.moves.hand_over_standby(messages.HandOverStandby(name))
    copying.there.flow()
    assert pair.wait_ended().done == 1
    assert owner(pair).totals()[KEY] == 1
    assert owner(pair).put(0, (KEY, 1)) == [(KEY, 2)]
    assert pair.a.totals() | pair.b.totals() == FIRST | {KEY: 2}


def test_key_that_came_back_goes_with_its_group_again_when_nothing_moves(pair: Pair) -> None:
    pair.moved("pause", apart(pair))
    pair.there = kind_is("copy_marker")
    pair.migrate("live", group(pair))
    pair.wait_connection(2).there.wait_stopped()
    pair.there = lambda _: False
    pair.moved("pause", apart(pair), back=True)
    pair.a.moves.abort_migration(messages.AbortMigration(pair.a.mover.request.id))
    pair.wait_ended()
    assert pair.a.owned() == ALL


def test_copies_of_keys_that_were_apart_before_are_dropped_with_the_rest(pair: Pair) -> None:
    """Before: one stayed, and would have come to life again with the next move of its group."""
    pair.moved("pause", apart(pair))
    pair.moved("pause", apart(pair), back=True)
    pair.migrate("standby", group(pair))
    pair.wait_connection(3).there.wait_sent("copy_marker")
    pair.a.moves.abort_migration(messages.AbortMigration(pair.a.mover.request.id))
    pair.wait_ended()
    pair.wait(lambda: pair.b.left_over() == [], lambda: str(pair.b.left_over()))
    assert pair.a.totals() == FIRST


def test_copy_of_a_key_is_not_dropped_with_the_group_that_brings_it_again(pair: Pair) -> None:
    """A standby of the key has ended at its origin, and its target has not noticed when the key comes with its group.

    Before: the target dropped the key with the standby's copies, and served the group without the key's state.
    """
    standby = pair.migrate("standby", apart(pair))
    first = pair.wait_connection(1)
    first.there.wait_sent("copy_marker")
    first.there.wait_idle()
    first.there.stop(kind_is("bye"))
    first.back.cut()
    assert pair.wait_ended().dropped == 1
    pair.there = kind_is("step_end")
    pair.migrate("pause", group(pair))
    second = pair.wait_connection(2)
    second.there.wait_stopped()
    pair._pause.wait(0.2)  # the target takes what it can
    first.there.flow()
    pair.wait(lambda: standby not in pair.b.shared.accepted_units)
    second.there.flow()
    assert pair.wait_ended().done == 1
    assert pair.b.put(0, (KEY, 1)) == [(KEY, 2)]


def key_after_group(pair: Pair, protocol: str, sent: str) -> None:
    """The key moves by itself when a migration of its group has ended at its origin, and its target has not noticed."""
    earlier = pair.migrate(protocol, group(pair))
    first = pair.wait_connection(1)
    first.there.wait_sent(sent)
    first.there.wait_idle()
    first.there.stop(kind_is("bye"))
    first.back.cut()
    assert pair.wait_ended().dropped == 1
    pair.there = kind_is("step_end")
    pair.migrate("pause", apart(pair))
    second = pair.wait_connection(2)
    second.there.wait_stopped()
    pair._pause.wait(0.2)  # the target takes what it can
    first.there.flow()
    pair.wait(lambda: earlier not in pair.b.shared.accepted_units)
    second.there.flow()
    assert pair.wait_ended().done == 1


@pytest.mark.parametrize("protocol", ["live", "standby"])
def test_copy_of_a_key_is_not_dropped_with_an_earlier_copy_of_its_group(pair: Pair, protocol: str) -> None:
    """Before: the target dropped the key with the copies of the group, and served the key without its state."""
    pair.back = kind_is("marker_reached")
    key_after_group(pair, protocol, "copy_marker")
    assert pair.b.put(0, (KEY, 1)) == [(KEY, 2)]
    assert not pair.b.shared.copied_groups


def test_ledger_of_a_key_is_not_dropped_with_an_earlier_offer_of_its_group(pair: Pair) -> None:
    """Before: the target dropped the key's ledger with the offer, and applied a row of a repeated task twice."""
    pair.back = kind_is("units_expected")
    key_after_group(pair, "push", "offer_units")
    assert pair.b.put_rows(0, [KEY], (KEY, 1)) == [(KEY, 1)]
    assert pair.b.totals()[KEY] == 1


def test_key_that_was_removed_does_not_come_back_with_its_former_owner(pair: Pair) -> None:
    """Before: a host that had given away a group, not confirmed yet, served a key of it that came back with its old state."""
    pair.back = kind_is("step_served")
    pair.migrate("pause", group(pair))
    pair.wait_connection(1).back.wait_stopped()
    pair.back = lambda _: False
    shared = pair.b.shared
    with shared.lock:
        shared.instance.keys.drop([(KEY,)], settled=True)
    assert pair.moved("pause", apart(pair), back=True).done == 1
    assert pair.a.put(0, (KEY, 1)) == [(KEY, 1)]


@pytest.mark.parametrize("protocol", ["live", "standby", "pause"])
def test_late_copy_of_a_group_does_not_overwrite_a_key_that_has_come_by_itself(pair: Pair, protocol: str) -> None:
    """Before: state of a migration that had ended, read late, took the place of rows that were applied since."""
    pair.there = kind_is("announce_step")
    pair.migrate(protocol, group(pair))
    first = pair.wait_connection(1)
    first.there.wait_sent("step_state")
    first.back.cut()
    assert pair.wait_ended().dropped == 1
    pair.there = lambda _: False
    assert pair.moved("pause", apart(pair)).done == 1
    assert pair.b.put(0, (KEY, 1)) == [(KEY, 2)]
    first.there.flow()
    first.there.wait_ended()
    assert pair.b.put(0, (KEY, 1)) == [(KEY, 3)]
    pair.wait(lambda: pair.b.shared.accepted_units == {})


def test_keys_that_were_apart_before_are_found_in_the_backup(pair: Pair) -> None:
    """Before: the target left out a key that it took for one of another host, and served it without its state."""
    pair.moved("pause", apart(pair))
    pair.moved("pause", apart(pair), back=True)
    pair.migrate("pause", group(pair), source="backup")
    assert pair.wait_ended().done == 1
    assert pair.b.put(0, (KEY, 1)) == [(KEY, 2)]


def lose_for_good(pair: Pair, side: Side) -> None:
    side.die()
    estate = rescue.fence(side.directory, "process")
    write_will(side.directory, estate.name, {}, estate.ends, estate.owned)


@pytest.mark.parametrize("restarts", [False, True], ids=["", "the origin restarts"])
def test_step_whose_target_is_lost_before_it_had_it_is_taken_back(pair: Pair, restarts: bool) -> None:
    """live-unordered releases first. Before: nobody owned the keys any more, and their rows waited for ever."""
    pair.there = kind_is("step_end")
    pair.migrate("live-unordered")
    pair.wait_connection(1).there.wait_stopped()
    if restarts:
        pair.a.restart()
    lose_for_good(pair, pair.b)
    told = pair.wait_ended()
    assert (told.done, told.dropped) == (0, 1)
    assert pair.a.owned() == ALL
    assert pair.a.put(0, (KEY, 1)) == [(KEY, 2)]
    pair.a.restart()
    assert pair.a.owned() == ALL
    assert pair.a.totals() == FIRST | {KEY: 2}


@pytest.mark.parametrize("restarts", [False, True], ids=["", "the origin restarts"])
def test_step_that_a_lost_target_had_served_is_forgotten(pair: Pair, restarts: bool) -> None:
    """Before: its origin tried for ever to reach a host that never comes back."""
    pair.back = kind_is("step_served")
    pair.migrate("pause")
    pair.wait_connection(1).back.wait_stopped()
    if restarts:
        pair.a.restart()
    lose_for_good(pair, pair.b)
    assert pair.wait_ended().done == 1
    assert pair.a.owned() == Units()
    assert pair.a.left_over() == []

"""Which timers have fired: one machine per host, keys that move between them, and a model that knows every key by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from godwit.model.fired_lanes import Arrival, FiredLanes
from godwit.model.units import Units

GROUPS, LANES, KEYS = 2, 3, range(12)


def units(groups: list[int], keys: list[int] | None = None) -> Units:
    return Units(frozenset(groups), frozenset(keys or []))


def test_keys_that_left_before_their_lane_had_fired_are_named_with_their_target() -> None:
    fired = FiredLanes().fire(0).release("m/0", "host-1", units([1]), (), GROUPS)
    assert (fired.left_unfired(0), fired.left_unfired(1)) == ([], [("m/0", "host-1")])
    assert fired.fire(1).left_unfired(1) == [("m/0", "host-1")]


def test_a_release_of_the_batch_before_is_named_once_more() -> None:
    """The target may have been in the new batch when the keys left, and may have fired the lane without them."""
    fired = FiredLanes().fire(0).release("m/0", "host-1", units([1]), (), GROUPS).next_batch()
    assert fired.left_unfired(0) == [("m/0", "host-1")]
    assert fired.next_batch().left_unfired(0) == []


def test_a_batch_that_begins_anew_has_fired_nothing() -> None:
    fired = FiredLanes().fire(0).arrived([Arrival(units([0]), lanes=frozenset({0}))])
    fired = fired.release("m/0", "host-1", units([1]), (), GROUPS).anew()
    assert not fired.has_fired(0, 0, GROUPS)
    assert fired.left_unfired(0) == [("m/0", "host-1")]


def test_keys_that_come_back_have_fired_as_when_they_left() -> None:
    """The target is lost before it owned them; meanwhile the origin has fired another lane without them."""
    fired = FiredLanes().fire(0).release("m/0", "host-1", units([1]), (), GROUPS).fire(1)
    back = fired.take_back("m/0", units([1]), ())
    assert [back.has_fired(1, lane, GROUPS) for lane in range(LANES)] == [True, False, False]
    assert [back.has_fired(2, lane, GROUPS) for lane in range(LANES)] == [True, True, False]
    unknown = FiredLanes().fire(0).take_back("m/0", units([1]), ())  # it was released in an earlier batch
    assert not unknown.has_fired(1, 0, GROUPS)


def test_a_mark_holds_all_of_it() -> None:
    fired = FiredLanes().fire(2).arrived([Arrival(units([0], [7]), frozenset({4}), frozenset({1}))])
    fired = fired.release("m/0", "host-1", units([1]), (3,), GROUPS)
    assert FiredLanes.from_dict(fired.to_dict()) == fired
    assert FiredLanes.from_dict(None) == FiredLanes()


# -- keys that move between two hosts, as groups or alone --------------------------------------------------------------


@dataclass
class Model:
    """`fired`: by key, whether its timers have fired in this batch. A key belongs to the lane key % LANES."""

    owner: dict[int, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    fired: dict[int, bool] = field(default_factory=lambda: dict.fromkeys(KEYS, False))


MOVES = st.one_of(
    st.tuples(st.just("fire"), st.sampled_from([0, 1]), st.integers(0, LANES - 1)),
    st.tuples(st.just("group"), st.sampled_from([0, 1]), st.integers(0, GROUPS - 1)),
    st.tuples(st.just("key"), st.sampled_from([0, 1]), st.sampled_from(KEYS)),
)


@given(st.lists(MOVES, max_size=25))
def test_every_key_fires_once_wherever_it_goes(moves: list[tuple[str, int, int]]) -> None:
    hosts, model = [FiredLanes(), FiredLanes()], Model()
    for step, (kind, host, what) in enumerate(moves):
        if kind == "fire":
            for key in (key for key in KEYS if model.owner[key] == host and key % LANES == what):
                assert hosts[host].has_fired(key, what, GROUPS) == model.fired[key]
                model.fired[key] = True
            hosts[host] = hosts[host].fire(what)
            continue
        of_unit = {key for key in KEYS if (key % GROUPS == what if kind == "group" else key == what)}
        moving = {key for key in of_unit if model.owner[key] == host}
        unit = units([what]) if kind == "group" else units([], [what])
        if not moving:
            continue
        parts = hosts[host].of(unit, of_unit - moving, GROUPS)
        hosts[host] = hosts[host].release(f"m/{step}", "other", unit, of_unit - moving, GROUPS)
        assert hosts[host].released[f"m/{step}"].keys == parts
        hosts[1 - host] = FiredLanes.from_dict(hosts[1 - host].arrived(parts).to_dict())
        model.owner |= dict.fromkeys(moving, 1 - host)
        unfired = {key % LANES for key in moving if not model.fired[key]}
        assert all(hosts[host].released[f"m/{step}"].lacks(lane) for lane in unfired)

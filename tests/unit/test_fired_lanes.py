"""Which timers have fired: one machine per host, keys that move between them, and a model that knows every key by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

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
    fired = FiredLanes().fire(0).arrived([Arrival(units([0]), lanes=frozenset({0}))], GROUPS)
    fired = fired.release("m/0", "host-1", units([1]), (), GROUPS).anew()
    assert not fired.has_fired(0, 0, GROUPS)
    assert fired.left_unfired(0) == [("m/0", "host-1")]


def test_keys_that_come_back_have_fired_as_when_they_left() -> None:
    """The target is lost before it owned them; meanwhile the origin has fired another lane without them."""
    fired = FiredLanes().fire(0).release("m/0", "host-1", units([1]), (), GROUPS).fire(1)
    back = fired.take_back("m/0", units([1]), (), GROUPS)
    assert [back.has_fired(1, lane, GROUPS) for lane in range(LANES)] == [True, False, False]
    assert [back.has_fired(2, lane, GROUPS) for lane in range(LANES)] == [True, True, False]
    unknown = FiredLanes().fire(0).take_back("m/0", units([1]), (), GROUPS)  # it was released in an earlier batch
    assert not unknown.has_fired(1, 0, GROUPS)


def test_a_mark_holds_all_of_it() -> None:
    fired = FiredLanes().fire(2).arrived([Arrival(units([0], [7]), frozenset({4}), frozenset({1}))], GROUPS)
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
        hosts[1 - host] = FiredLanes.from_dict(hosts[1 - host].arrived(parts, GROUPS).to_dict())
        hosts[host] = confirmed(hosts[host], f"m/{step}")
        model.owner |= dict.fromkeys(moving, 1 - host)
        unfired = {key % LANES for key in moving if not model.fired[key]}
        assert all(hosts[host].released[f"m/{step}"].lacks(lane) for lane in unfired)
    assert all(len(host.released) <= 1 for host in hosts)
    assert all(not a.units & b.units for host in hosts for a, b in combinations(host.arrivals, 2)), "each key once"


def confirmed(host: FiredLanes, step: str) -> FiredLanes:
    """What a lane lacks is the same afterwards."""
    after = host.confirm(step)
    for lane in range(LANES):
        assert bool(after.left_unfired(lane)) == bool(host.left_unfired(lane))
    return after


def test_keys_that_move_to_and_fro_within_a_batch_leave_no_trail() -> None:
    """What a host remembered grew by half with every move: after forty moves it took gigabytes."""
    hosts, unit = [FiredLanes().fire(0), FiredLanes().fire(1)], units([0], [3])
    sizes = []
    for move in range(40):
        here, there = hosts[move % 2], hosts[1 - move % 2]
        hosts[1 - move % 2] = there.arrived(here.of(unit, (), GROUPS), GROUPS)
        hosts[move % 2] = here.release(f"m/{move}", "other", unit, (), GROUPS).confirm(f"m/{move}")
        sizes.append(len(str(hosts[move % 2].to_dict())))
    assert max(sizes) <= max(sizes[:4]) + 1, "the number of the newest step has a digit more"


def test_a_release_that_is_confirmed_stands_for_the_earlier_ones_to_that_target() -> None:
    fired = FiredLanes().fire(0).release("m/0", "host-1", units([1]), (), GROUPS)
    fired = fired.fire(1).release("m/1", "host-1", units([0]), (), GROUPS)
    fired = fired.release("m/2", "host-2", units([], [5]), (), GROUPS)
    fired = fired.confirm("m/0").confirm("m/2").confirm("m/1").confirm("unknown")
    assert fired.left_unfired(0) == []
    assert fired.left_unfired(1) == [("m/1", "host-1")], "those of the first step have not fired"
    assert sorted(fired.left_unfired(2)) == [("m/1", "host-1"), ("m/2", "host-2")]
    assert FiredLanes.from_dict(fired.to_dict()) == fired

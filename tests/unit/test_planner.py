"""The planner: an even spread with the fewest groups moved, and load taken off busy hosts with few moves."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from godwit.control.moves import Move, group_count
from godwit.control.planner import Measured, keys_home, minimum, rebalance, spread
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units

HOSTS = [f"host-{at}" for at in range(7)]
GROUPS = 24


@st.composite
def tables(draw: st.DrawFn) -> Routing:
    hosts = draw(st.lists(st.sampled_from(HOSTS), min_size=1, max_size=5, unique=True))
    owners = draw(st.lists(st.integers(0, len(hosts) - 1), min_size=GROUPS, max_size=GROUPS))
    return Routing(1, tuple(hosts), tuple(owners))


WANTED = st.lists(st.sampled_from(HOSTS), min_size=1, max_size=6, unique=True)


def carried_out(routing: Routing, moves: list[Move]) -> dict[int, str]:
    owners = {group: routing.hosts[at] for group, at in enumerate(routing.owners)}
    for move in moves:
        for group in move.units.groups:
            assert owners[group] == move.origin, "a move takes from the owner"
            owners[group] = move.target
    return owners


def least(routing: Routing, hosts: list[str]) -> int:
    """By trying every way to give the odd groups to hosts."""
    held = Counter(routing.hosts[at] for at in routing.owners)
    share, odd = divmod(GROUPS, len(hosts))
    return min(
        sum(max(0, share + (host in lucky) - held[host]) for host in hosts) for lucky in combinations(hosts, odd)
    )


@given(tables(), WANTED)
def test_spread_is_even_within_one_group(routing: Routing, hosts: list[str]) -> None:
    counts = Counter(carried_out(routing, spread("speed", routing, hosts)).values())
    assert counts.keys() <= set(hosts)
    assert max(counts[host] for host in hosts) - min(counts[host] for host in hosts) <= 1


@given(tables(), WANTED)
def test_no_other_even_spread_moves_fewer_groups(routing: Routing, hosts: list[str]) -> None:
    assert group_count(spread("speed", routing, hosts)) == minimum(routing, hosts) == least(routing, hosts)


@given(tables(), WANTED, st.dictionaries(st.integers(0, GROUPS - 1), st.floats(0.0, 100.0)))
def test_weights_do_not_change_how_many_groups_move(
    routing: Routing, hosts: list[str], weights: dict[int, float]
) -> None:
    moves = spread("speed", routing, hosts, weights)
    assert group_count(moves) == minimum(routing, hosts)
    counts = Counter(carried_out(routing, moves).values())
    assert max(counts[host] for host in hosts) - min(counts[host] for host in hosts) <= 1


@given(tables(), WANTED)
def test_nobody_gives_what_it_may_keep_and_nobody_gives_and_takes(routing: Routing, hosts: list[str]) -> None:
    moves = spread("speed", routing, hosts)
    assert {move.origin for move in moves}.isdisjoint(move.target for move in moves)
    share = -(-GROUPS // len(hosts))
    held = Counter(routing.hosts[at] for at in routing.owners)
    for host in hosts:
        given_away = sum(len(move.units) for move in moves if move.origin == host)
        assert held[host] - given_away >= min(held[host], share - 1)


def test_an_even_spread_is_left_alone() -> None:
    routing = Routing.spread(HOSTS[:3], 30)
    assert spread("speed", routing, HOSTS[:3]) == []
    assert minimum(routing, HOSTS[:3]) == 0


def test_from_two_hosts_to_three_a_third_moves() -> None:
    routing = Routing.spread(HOSTS[:2], 1024)
    assert group_count(spread("speed", routing, HOSTS[:3])) == minimum(routing, HOSTS[:3]) == 341


def test_drained_host_loses_everything_and_the_others_nothing() -> None:
    routing = Routing.spread(HOSTS[:3], 30)
    moves = spread("speed", routing, HOSTS[1:3])
    assert {move.origin for move in moves} == {"host-0"}
    assert group_count(moves) == 10


def test_load_decides_which_groups_go() -> None:
    routing = Routing(1, ("host-0",), (0,) * 8)
    weights = {0: 10.0, 1: 10.0, 2: 10.0, 3: 10.0, 4: 1.0, 5: 1.0, 6: 1.0, 7: 1.0}
    (move,) = spread("speed", routing, ["host-0", "host-1"], weights)
    assert sum(weights[group] for group in move.units.groups) == 22.0


def test_keys_apart_on_a_host_that_leaves_go_to_the_owner_of_their_group() -> None:
    routing = Routing.spread(HOSTS[:3], 6).moved({Unit("key", 13): 2, Unit("key", 9): 2}, "host-0")
    assert keys_home("speed", routing, ["host-0"]) == [
        Move("speed", "host-0", "host-1", Units(keys=frozenset((9,)))),
    ], "13 is of group 1, which is host-0's own"
    assert keys_home("speed", routing, ["host-1"]) == []


# -- by load ---------------------------------------------------------------------------------------------------------


def even(routing: Routing, rows: float = 10.0) -> dict[str, Measured]:
    return {host: Measured(dict.fromkeys(routing.groups_of(host), rows)) for host in routing.hosts}


def loads(measured: dict[str, Measured], moves: list[Move]) -> dict[str, float]:
    found = {host: sum(one.rows.values()) for host, one in measured.items()}
    for move in moves:
        source = measured[move.origin]
        weight = sum(source.rows[group] for group in move.units.groups) + sum(
            source.hot[key] for key in move.units.keys
        )
        found[move.origin] -= weight
        found[move.target] += weight
    return found


def test_even_load_is_left_alone() -> None:
    routing = Routing.spread(HOSTS[:3], 30)
    assert rebalance("speed", routing, routing.hosts, even(routing)) == []


def test_no_load_is_left_alone() -> None:
    routing = Routing.spread(HOSTS[:2], 8)
    assert rebalance("speed", routing, routing.hosts, {}) == []


def test_a_little_more_on_one_host_is_left_alone() -> None:
    routing = Routing.spread(HOSTS[:2], 20)
    measured = even(routing) | {"host-0": Measured(dict.fromkeys(routing.groups_of("host-0"), 10.5))}
    assert rebalance("speed", routing, routing.hosts, measured) == []


def test_one_busy_host_gives_few_groups_to_the_idlest() -> None:
    routing = Routing.spread(HOSTS[:3], 30)
    busy = Measured({group: 40.0 if group < 4 else 10.0 for group in routing.groups_of("host-0")})
    measured = even(routing) | {"host-0": busy}
    moves = rebalance("speed", routing, routing.hosts, measured)
    assert group_count(moves) <= 3
    assert max(loads(measured, moves).values()) <= 140.0 * 1.15


def test_one_key_that_unbalances_alone_goes_apart() -> None:
    routing = Routing.spread(HOSTS[:2], 4)
    measured = {
        "host-0": Measured({0: 400.0, 1: 300.0}, hot={8: 300.0, 4: 90.0}),
        "host-1": Measured({2: 100.0, 3: 100.0}),
    }
    moves = rebalance("speed", routing, routing.hosts, measured)
    assert max(loads(measured, moves).values()) <= 500.0
    hot = {"host-0": Measured({0: 900.0}, hot={8: 300.0}), "host-1": Measured({2: 100.0})}
    assert rebalance("speed", routing, routing.hosts, hot) == [
        Move("speed", "host-0", "host-1", Units(keys=frozenset((8,)))),
    ]


def test_one_key_with_nearly_all_the_load_is_not_carried_to_and_fro() -> None:
    routing = Routing.spread(HOSTS[:2], 4)
    measured = {"host-0": Measured({0: 1000.0, 1: 1.0}, hot={0: 1000.0}), "host-1": Measured({2: 1.0})}
    assert rebalance("speed", routing, routing.hosts, measured) == []


def test_bytes_count_where_rows_are_even() -> None:
    routing = Routing.spread(HOSTS[:2], 8)
    rows = {host: dict.fromkeys(routing.groups_of(host), 10.0) for host in routing.hosts}
    measured = {
        "host-0": Measured(rows["host-0"], dict.fromkeys(routing.groups_of("host-0"), 1e9)),
        "host-1": Measured(rows["host-1"], dict.fromkeys(routing.groups_of("host-1"), 1.0)),
    }
    (move,) = rebalance("speed", routing, routing.hosts, measured)
    assert (move.origin, move.target) == ("host-0", "host-1")


@given(
    tables(),
    st.lists(st.floats(0.0, 1000.0), min_size=GROUPS, max_size=GROUPS),
    st.dictionaries(st.integers(0, 99), st.floats(0.1, 0.9)),
)
def test_rebalancing_never_makes_the_busiest_host_busier_nor_moves_a_group_and_its_key(
    routing: Routing, rows: list[float], hot: dict[int, float]
) -> None:
    share = {
        key: part * rows[key % GROUPS] / (1 + sum(k % GROUPS == key % GROUPS for k in hot)) for key, part in hot.items()
    }
    measured = {
        host: Measured(
            {group: rows[group] for group in routing.groups_of(host)},
            hot={key: weight for key, weight in share.items() if routing.owner(key) == host},
        )
        for host in routing.hosts
    }
    moves = rebalance("speed", routing, routing.hosts, measured)
    before, after = loads(measured, []), loads(measured, moves)
    assert max(after.values()) <= max(before.values()) + 1e-6
    groups = [group for move in moves for group in move.units.groups]
    keys = [key for move in moves for key in move.units.keys]
    assert len(set(groups)) == len(groups)
    assert not {key % GROUPS for key in keys} & set(groups)

"""Who keeps whose backup."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from godwit.control.backup_choice import Place, choose_peer

PLACES = st.dictionaries(
    st.sampled_from([f"host-{at}" for at in range(8)]),
    st.builds(Place, st.sampled_from("abc"), st.sampled_from("xyz")),
    min_size=1,
)


def settled(places: dict[str, Place], kept_by: dict[str, str]) -> dict[str, str]:
    """Every host asks, again and again, as they do."""
    for _ in range(4):
        for host in places:
            keeper = choose_peer(host, places, kept_by)
            if keeper is not None:
                kept_by = {**kept_by, host: keeper}
    return kept_by


def test_alone_there_is_nobody() -> None:
    assert choose_peer("host-0", {"host-0": Place("a", "x")}, {}) is None


def test_a_host_that_is_not_there_has_no_backup() -> None:
    assert choose_peer("host-1", {"host-0": Place("a", "x")}, {}) is None


def test_hosts_alike_make_a_ring() -> None:
    places = {f"host-{at}": Place("a", f"disk-{at}") for at in range(4)}
    assert settled(places, {}) == {f"host-{at}": f"host-{(at + 1) % 4}" for at in range(4)}


def test_another_disk_is_worth_more_than_another_machine() -> None:
    places = {"host-0": Place("a", "x"), "host-1": Place("b", "x"), "host-2": Place("a", "y")}
    assert choose_peer("host-0", places, {}) == "host-2"


def test_a_backup_that_is_as_safe_stays_where_it_is() -> None:
    places = {f"host-{at}": Place("a", f"disk-{at}") for at in range(4)}
    assert choose_peer("host-0", places, {"host-0": "host-3", "host-2": "host-3"}) == "host-3"


def test_a_backup_moves_once_there_is_a_safer_place() -> None:
    places = {"host-0": Place("a", "x"), "host-1": Place("a", "x"), "host-2": Place("b", "y")}
    assert choose_peer("host-0", places, {"host-0": "host-1"}) == "host-2"


@given(
    PLACES, st.dictionaries(st.sampled_from([f"host-{at}" for at in range(8)]), st.sampled_from(["host-0", "host-9"]))
)
def test_nobody_keeps_their_own_and_nobody_is_safer_than_the_keeper(
    places: dict[str, Place], kept_by: dict[str, str]
) -> None:
    found = settled(places, kept_by)
    for host, place in places.items():
        others = [other for name, other in places.items() if name != host]
        if others:
            keeper = found[host]
            assert keeper != host
            assert place.shared_with(places[keeper]) == min(place.shared_with(other) for other in others)


@given(st.integers(2, 8), st.data())
def test_where_all_are_apart_nobody_keeps_many(count: int, data: st.DataObject) -> None:
    places = {f"host-{at}": Place(f"m{at}", f"d{at}") for at in range(count)}
    names = sorted(places)
    before = {host: data.draw(st.sampled_from([name for name in names if name != host])) for host in names}
    found = settled(places, before)
    assert max(Counter(found.values()).values()) <= 3
    assert settled(places, found) == found, "asking again moves nothing"

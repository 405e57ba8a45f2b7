"""Who gets what of a lost host."""

from __future__ import annotations

from godwit.model.units import Unit, Units
from godwit.runtime.rescue import dealt

ALL = Units(frozenset(range(6)), frozenset({100, 200}))


def counts(shares: dict[str, dict[str, Units]]) -> dict[str, int]:
    return {heir: len(share["op"]) for heir, share in shares.items()}


def test_all_is_dealt_out_evenly() -> None:
    shares = dealt({"op": ALL}, ["a", "b", "c"], {})
    assert counts(shares) == {"a": 3, "b": 3, "c": 2}
    found = [unit for share in shares.values() for unit in share["op"]]
    assert sorted(found) == sorted(ALL)


def test_who_has_copies_gets_what_they_are_of_and_nothing_else() -> None:
    copied = Units(frozenset({0, 1, 2, 9}))
    shares = dealt({"op": ALL}, ["a", "b"], {"op": {"b": copied}})
    assert shares["b"]["op"] == Units(frozenset({0, 1, 2}))
    assert shares["a"]["op"] == ALL - shares["b"]["op"]


def test_the_last_host_gets_all_of_it_whatever_it_has_copies_of() -> None:
    shares = dealt({"op": ALL}, ["b"], {"op": {"b": Units.of(Unit("group", 0))}})
    assert shares == {"b": {"op": ALL}}

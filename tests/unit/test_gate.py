"""What a router hears when a host refuses rows of it."""

from __future__ import annotations

from pathlib import Path

from godwit.model.units import Units
from godwit.runtime.host.gate import Gate
from godwit.runtime.messages import RefusedRows
from tests.unit.pair import ALL, Pair, Side, joined


def refused(side: Side, gate: Gate, pair: Pair, number: int) -> RefusedRows:
    chunk = pair.chunk([number], [(1, 1)])
    with side.shared.lock:
        passed = gate.let_in(chunk, 0, False, lambda _: (_ for _ in ()).throw(AssertionError("applied")))
    assert passed.refused is not None
    return passed.refused


def test_one_refusal_names_all_groups_that_have_moved_and_each_once(tmp_path: Path) -> None:
    """Else a router would ask for the rows of each group in vain."""
    with joined(tmp_path) as pair:
        pair.a.put(0, (1, 1))
        gate = Gate(pair.a.shared, pair.a.stopping.is_set)
        assert pair.moved("live").dropped == 0
        first = refused(pair.a, gate, pair, 100)
        assert {hint.unit for hint in first.groups} == ALL.groups
        assert {hint.host for hint in first.groups} == {pair.b.name}
        assert len(refused(pair.a, gate, pair, 101).groups) == 1


def test_a_group_that_has_come_here_is_not_named(tmp_path: Path) -> None:
    with joined(tmp_path) as pair:
        pair.a.put(0, (1, 1))
        gate = Gate(pair.b.shared, pair.b.stopping.is_set)
        stays = pair.group_of(1)
        assert pair.moved("pause", ALL - Units(frozenset([stays]))).dropped == 0
        assert [hint.unit for hint in refused(pair.b, gate, pair, 7).groups] == [stays]

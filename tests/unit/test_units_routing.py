"""Units, and the routing table that says where they are: what moving, joining, parting and packing do to it."""

from __future__ import annotations

import pytest

from godwit.model.routing import Routing
from godwit.model.units import Unit, Units


def group(number: int) -> Unit:
    return Unit("group", number)


def key(route_hash: int) -> Unit:
    return Unit("key", route_hash)


TABLE = Routing.spread(["A", "B"], 4)  # groups 0, 1 at A; 2, 3 at B


class TestUnits:
    def test_set_operations_keep_groups_and_keys_apart(self) -> None:
        some, other = Units.of(group(1), key(1)), Units.of(key(1), group(2))
        assert some | other == Units(frozenset((1, 2)), frozenset((1,)))
        assert some & other == Units.of(key(1))
        assert some - other == Units.of(group(1))

    def test_counts_lists_and_tells_what_it_has(self) -> None:
        units = Units.of(key(9), group(3), group(1))
        assert list(units) == [group(1), group(3), key(9)]
        assert len(units) == 3
        assert key(9) in units
        assert key(3) not in units
        assert not Units()

    @pytest.mark.parametrize(
        ("some", "other", "overlap"),
        [
            (Units.of(group(1)), Units.of(group(1), group(2)), True),
            (Units.of(key(5)), Units.of(key(5)), True),
            (Units.of(key(5)), Units.of(group(1)), True),
            (Units.of(group(1)), Units.of(key(5)), True),
            (Units.of(key(5)), Units.of(group(2), key(9)), False),
            (Units.of(group(1)), Units.of(key(6)), False),
        ],
    )
    def test_single_key_overlaps_its_group(self, some: Units, other: Units, overlap: bool) -> None:
        assert some.overlaps(other, 4) is overlap

    def test_negative_hash_belongs_to_a_group_too(self) -> None:
        assert Units.of(key(-3)).overlaps(Units.of(group(1)), 4)

    def test_is_read_back_from_a_dict(self) -> None:
        units = Units.of(group(2), key(-7))
        assert Units.from_dict(units.to_dict()) == units


class TestMoved:
    def test_group_goes_with_all_of_its_keys(self) -> None:
        table = TABLE.moved({group(1): 2}, "B")
        assert table.owner(1) == table.owner(5) == "B"
        assert table.owner(0) == "A"
        assert table.version == TABLE.version + 1

    def test_single_key_goes_alone(self) -> None:
        table = TABLE.moved({key(5): 2}, "B")
        assert table.owner(5) == table.owner_of(key(5)) == "B"
        assert table.owner(1) == "A"
        assert table.units_of("B") == Units.of(group(2), group(3), key(5))

    @pytest.mark.parametrize("unit", [group(1), key(5)])
    def test_older_word_changes_nothing(self, unit: Unit) -> None:
        table = TABLE.joined(["C"]).moved({unit: 3}, "B").moved({unit: 2}, "C")
        assert table.owner(5) == "B"

    def test_key_back_at_its_group_needs_no_line_and_its_epoch_is_kept(self) -> None:
        table = TABLE.moved({key(5): 2}, "B").moved({key(5): 3}, "A")
        assert not table.apart
        assert table.epochs[1] == 3
        assert table.owner(5) == "A"

    def test_key_that_stays_is_apart_when_its_group_goes(self) -> None:
        table = TABLE.joined(["C"]).moved({key(5): 2}, "B").moved({group(1): 4}, "C")
        assert table.owner(5) == "B"
        assert table.owner(1) == "C"

    def test_group_that_follows_its_key_takes_it_back(self) -> None:
        table = TABLE.moved({key(5): 2}, "B").moved({group(1): 2}, "B")
        assert not table.apart
        assert table.owner(5) == "B"

    def test_many_move_at_once(self) -> None:
        table = TABLE.moved({group(0): 2, group(1): 2, key(4): 3}, "B")
        assert table.units_of("A") == Units()


class TestHosts:
    def test_host_that_joins_owns_nothing(self) -> None:
        table = TABLE.joined(["B", "C"])
        assert table.hosts == ("A", "B", "C")
        assert table.units_of("C") == Units()
        assert TABLE.joined(["A"]) is TABLE

    def test_host_that_parts_leaves_the_others_as_they_were(self) -> None:
        table = TABLE.joined(["C"]).moved({group(0): 2, group(1): 2}, "C").moved({key(6): 2}, "C").parted(["A"])
        assert table.hosts == ("B", "C")
        assert [table.owner(one) for one in (0, 1, 2, 3, 6)] == ["C", "C", "B", "B", "C"]

    def test_table_that_was_not_told_of_a_move_gives_what_a_parted_host_had_to_another(self) -> None:
        """It is a hint: whoever is asked wrongly says who owns the key."""
        after = TABLE.parted(["A"])
        assert "A" not in after.hosts
        assert not any(after.owner_of(unit) == "A" for host in TABLE.hosts for unit in TABLE.units_of(host))
        assert after.epochs == TABLE.epochs

    def test_unknown_host_owns_nothing(self) -> None:
        assert TABLE.units_of("Z") == Units()


@pytest.mark.parametrize(
    "table",
    [TABLE, TABLE.joined(["C"]).moved({key(-(2**63)): 7, key(2**63 - 1): 9, group(3): 2**32 - 1}, "C")],
    ids=["plain", "apart"],
)
def test_packed_and_dict_forms_are_read_back(table: Routing) -> None:
    assert Routing.unpacked(table.packed()) == table
    assert Routing.from_dict(table.to_dict()) == table


def test_packed_form_is_14_bytes_a_key() -> None:
    table = TABLE.moved({key(4 * at + 1): 2 for at in range(1000)}, "B")
    assert len(table.apart) == 1000
    packed = table.packed()
    assert sum(len(packed[part]) for part in ("apart", "apart_owners", "apart_epochs")) == 14_000

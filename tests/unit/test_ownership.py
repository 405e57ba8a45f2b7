"""Who may apply what: how hand-overs change it, what a restart finds, and what is known of keys apart from their group."""

from __future__ import annotations

from typing import Any

import pytest

from godwit.errors import InvariantBroken
from godwit.model.ownership import Incoming, Ownership, Share, Stand
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units

TABLE = Routing.spread(["A", "B"], 4)  # groups 0, 1 at A; 2, 3 at B
G1 = Unit("group", 1)
K5 = Unit("key", 5)  # of group 1, as 9 is
K4 = Unit("key", 4)  # of group 0


def host(name: str) -> Ownership:
    return Ownership.initial(name, TABLE)


def hand_over(step: str, units: Units, origin: Ownership, target: Ownership) -> None:
    """All the way, as hosts do it."""
    origin.cut(units, target.host)
    epochs = {unit: origin.share(unit).epoch for unit in units}
    target.prepare(step, Incoming(units, origin.host, epochs, origin.apart(units)))
    origin.release(step, units, target.host)
    target.serve(step)
    origin.confirm(step)


def owners(route_hash: int, *hosts: Ownership) -> list[str]:
    return [one.host for one in hosts if one.of(route_hash).stand is Stand.MINE]


def again(own: Ownership) -> Ownership:
    return Ownership.from_dict(own.host, own.to_dict())


class TestHandingOver:
    def test_group_goes_with_the_next_epoch(self) -> None:
        a, b = host("A"), host("B")
        hand_over("m/0", Units.of(G1), a, b)
        assert a.of(1) == Share(Stand.AWAY, 2, "B")
        assert b.of(1) == Share(Stand.MINE, 2, "B")

    def test_single_key_goes_alone(self) -> None:
        a, b = host("A"), host("B")
        hand_over("m/0", Units.of(K5), a, b)
        assert owners(5, a, b) == ["B"]
        assert owners(1, a, b) == ["A"]

    @pytest.mark.parametrize("stand", ["lend", "cut"])
    def test_origin_that_keeps_it_goes_on(self, stand: str) -> None:
        a = host("A")
        getattr(a, stand)(Units.of(G1, K4), "B")
        assert a.of(5).stand is a.of(4).stand is not Stand.MINE
        a.resume(Units.of(G1, K4))
        assert a.to_dict() == host("A").to_dict()

    def test_target_that_drops_it_refuses(self) -> None:
        b = host("B")
        b.expect(Units.of(G1), "A")
        b.prepare("m/0", Incoming(Units.of(G1), "A", {G1: 1}, {}))
        assert b.busy()
        b.drop(Units.of(G1))
        assert b.of(1).stand is Stand.AWAY
        assert not b.incoming
        assert not b.busy()

    @pytest.mark.parametrize(
        ("name", "change", "arguments"),
        [
            ("A", "release", ("m/0", Units.of(G1), "B")),
            ("B", "cut", (Units.of(G1), "A")),
            ("B", "lend", (Units.of(G1), "A")),
            ("A", "expect", (Units.of(G1), "B")),
            ("A", "prepare", ("m/0", Incoming(Units.of(G1), "B", {G1: 1}, {}))),
            ("B", "resume", (Units.of(G1),)),
        ],
    )
    def test_what_cannot_follow_is_refused(self, name: str, change: str, arguments: tuple[Any, ...]) -> None:
        with pytest.raises(InvariantBroken):
            getattr(host(name), change)(*arguments)

    def test_every_change_changes_the_version(self) -> None:
        a, versions = host("A"), set()
        for change in (a.lend, a.cut):
            change(Units.of(G1), "B")
            versions.add(a.version)
        a.release("m/0", Units.of(G1), "B")
        assert len(versions | {a.version}) == 3

    def test_step_served_before_is_known_by_its_epochs(self) -> None:
        a, b = host("A"), host("B")
        assert not b.served({G1: 2})
        hand_over("m/0", Units.of(G1), a, b)
        assert again(b).served({G1: 2})
        hand_over("m/1", Units.of(G1), b, a)
        assert b.served({G1: 2})
        assert not b.served({G1: 4})


class TestRestart:
    @pytest.mark.parametrize("stand", ["lend", "cut"])
    def test_origin_owns_what_it_has_not_released(self, stand: str) -> None:
        a = host("A")
        getattr(a, stand)(Units.of(G1, K4), "B")
        assert again(a).to_dict() == host("A").to_dict()

    def test_origin_remembers_what_it_released_until_it_is_confirmed(self) -> None:
        a = host("A")
        a.cut(Units.of(G1, K4), "B")
        a.release("m/0", Units.of(G1, K4), "B")
        restarted = again(a)
        assert restarted.outgoing == a.outgoing
        assert restarted.of(5) == restarted.of(4) == Share(Stand.AWAY, 2, "B")
        restarted.confirm("m/0")
        assert not again(restarted).outgoing

    def test_target_forgets_promises(self) -> None:
        b = host("B")
        b.expect(Units.of(G1), "A")
        assert again(b).of(1).stand is Stand.AWAY

    def test_target_holds_what_it_has_prepared(self) -> None:
        b = host("B")
        b.prepare("m/0", Incoming(Units.of(G1, K4), "A", {G1: 4, K4: 6}, {9: ("C", 3)}))
        restarted = again(b)
        assert restarted.of(1).stand is restarted.of(4).stand is Stand.PREPARED
        restarted.serve("m/0")
        assert restarted.of(4) == Share(Stand.MINE, 7, "B")
        assert restarted.of(9) == Share(Stand.AWAY, 3, "C")


class TestKeysApart:
    def test_key_that_comes_back_to_its_group_needs_no_line(self) -> None:
        a, b = host("A"), host("B")
        hand_over("m/0", Units.of(K5), a, b)
        hand_over("m/1", Units.of(K5), b, a)
        assert not a.keys
        assert a.of(5) == Share(Stand.MINE, 3, "A")

    def test_group_goes_without_keys_that_are_apart(self) -> None:
        a, b, c = host("A"), host("B"), host("C")
        hand_over("m/0", Units.of(K5), a, b)
        hand_over("m/1", Units.of(G1), a, c)
        assert owners(5, a, b, c) == ["B"]
        assert c.of(5) == Share(Stand.AWAY, 2, "B")

    def test_key_that_came_here_since_is_not_given_up_for_an_older_word(self) -> None:
        """C got the group when A had the key; the key has come to B since; now B gets the group from C."""
        a, b, c = host("A"), host("B"), host("C")
        hand_over("m/0", Units.of(G1), a, c)
        hand_over("m/1", Units.of(K5), c, a)
        hand_over("m/2", Units.of(K5), a, b)
        hand_over("m/3", Units.of(G1), c, b)
        assert owners(5, a, b, c) == ["B"]
        assert not b.keys

    def test_key_that_went_back_to_its_group_comes_with_it(self) -> None:
        """B knew the key apart at A; it has rejoined its group at C since; now B gets the group back."""
        a, b, c = host("A"), host("B"), host("C")
        hand_over("m/0", Units.of(G1), a, b)
        hand_over("m/1", Units.of(K5), b, a)
        hand_over("m/2", Units.of(G1), b, c)
        hand_over("m/3", Units.of(K5), a, c)
        hand_over("m/4", Units.of(G1), c, b)
        assert owners(5, a, b, c) == ["B"]
        assert owners(9, a, b, c) == ["B"]

    def test_key_that_rejoined_is_held_while_its_group_is_prepared(self) -> None:
        a, b, c = host("A"), host("B"), host("C")
        hand_over("m/0", Units.of(G1), a, b)
        hand_over("m/1", Units.of(K5), b, a)
        hand_over("m/2", Units.of(G1), b, c)
        hand_over("m/3", Units.of(K5), a, c)
        b.prepare("m/4", Incoming(Units.of(G1), "C", {G1: c.share(G1).epoch}, c.apart(Units.of(G1))))
        assert again(b).of(5).stand is Stand.PREPARED

    def test_key_that_is_being_lent_is_still_told_as_owned_here(self) -> None:
        a = host("A")
        a.lend(Units.of(K5), "B")
        assert a.of(9).stand is Stand.MINE
        assert a.apart(Units.of(G1)) == {5: ("A", 1)}

    def test_key_taken_apart_when_the_host_died_is_with_its_group_again(self) -> None:
        a = host("A")
        a.cut(Units.of(K5), "B")
        assert not again(a).keys

    def test_newer_hints_lead_to_the_owner(self) -> None:
        """Through all that a host may know of a key, epochs grow on the way to its owner."""
        hosts = {name: host(name) for name in "ABCD"}
        a, b, c, d = hosts.values()
        hand_over("m/0", Units.of(G1), a, b)
        hand_over("m/1", Units.of(K5), b, a)
        hand_over("m/2", Units.of(G1), b, c)
        hand_over("m/3", Units.of(K5), a, c)
        hand_over("m/4", Units.of(G1), c, d)
        for start in "ABC":
            at, hops = hosts[start], 0
            while at.of(5).stand is not Stand.MINE:
                at, hops = hosts[at.of(5).peer], hops + 1
                assert hops < 5
            assert at is d

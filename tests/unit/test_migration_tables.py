"""The protocols' tables: what holds for all of them, and how each goes its own way from the request to the end."""

from __future__ import annotations

import pytest

from godwit.errors import InvariantBroken
from godwit.migration import PROTOCOLS
from godwit.migration import events as ev
from godwit.migration.origin import IMPOSSIBLE, OVER, REVOCABLE, Origin, Phase, Step, drawn, with_timers
from godwit.migration.push import by_backlog
from godwit.migration.target import TABLE, Target, TargetPhase
from godwit.model.units import Unit, Units

ONE, TWO = Units.of(Unit("group", 0)), Units.of(Unit("group", 1), Unit("key", 6))
LARGE = 1 << 20  # bytes of a step that is not joined with others
RELEASED = (Phase.RELEASED, Phase.SHIPPED)
NAMES = ("pause", "fetch", "push", "live", "live-unordered", "standby")

every_protocol = pytest.mark.parametrize("name", NAMES)


def names(effects: list[ev.Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def begun(name: str, *steps: Units, side_by_side: int | None = None) -> tuple[Origin, list[ev.Effect]]:
    """Up to where the first step is on its way."""
    machine = Origin(PROTOCOLS[name], steps, [LARGE] * len(steps), side_by_side)
    effects = machine.on(ev.Begun())
    if machine.protocol.lead_bytes:
        (offer,) = effects
        assert isinstance(offer, ev.Offer)
        effects = machine.on(ev.Offered(offer.units))
    return machine, effects


def cut(name: str, *steps: Units) -> Origin:
    """Up to where the first step is cut, or for live-unordered is being released."""
    machine, _ = begun(name, *steps)
    for event in (ev.Copied(0), ev.CaughtUp(0), ev.HandoverRequested()):
        machine.on(event)
    return machine


def released(name: str) -> Origin:
    machine = cut(name, ONE)
    machine.on(ev.Prepared(0))
    machine.on(ev.Released(0))
    assert machine.steps[0].phase in RELEASED
    return machine


class TestEveryProtocol:
    def test_is_registered(self) -> None:
        assert set(NAMES) <= set(PROTOCOLS)

    @every_protocol
    def test_lets_go_by_a_record_only(self, name: str) -> None:
        into = {(phase, event) for (phase, event), (after, _) in PROTOCOLS[name].table.items() if after in RELEASED}
        assert {event for phase, event in into if phase not in RELEASED} == {ev.Released}

    @every_protocol
    def test_takes_back_what_was_released_only_if_its_target_is_gone_for_good(self, name: str) -> None:
        for (phase, event), (after, _) in PROTOCOLS[name].table.items():
            if phase in (Phase.RELEASING, *RELEASED):
                assert after in (*RELEASED, Phase.DONE) or (phase in RELEASED and event is ev.TargetLost)
            assert phase not in OVER

    @every_protocol
    @pytest.mark.parametrize("event", [ev.TargetDisconnected(), ev.AbortRequested("asked")], ids=["lost", "aborted"])
    def test_can_stay_from_every_phase_before_that(self, name: str, event: ev.Event) -> None:
        for phase in REVOCABLE:
            machine = Origin(PROTOCOLS[name], [ONE])
            machine.steps[0].phase = phase
            effects = machine.on(event)
            assert machine.steps[0].phase is Phase.DROPPED
            assert names(effects)[0] == "Resume"
            assert ("TellAborted" in names(effects)) is isinstance(event, ev.AbortRequested)
            assert isinstance(effects[-1], ev.End)

    @every_protocol
    @pytest.mark.parametrize(
        "event", [ev.TargetDisconnected(), ev.AbortRequested("asked"), ev.Declined(0), ev.Prepared(0)]
    )
    def test_is_past_recall_while_the_record_is_written(self, name: str, event: ev.Event) -> None:
        machine = cut(name, ONE)
        machine.on(ev.Prepared(0))
        assert machine.steps[0].phase is Phase.RELEASING
        assert machine.on(event) == []

    @every_protocol
    def test_tells_again_until_it_is_confirmed(self, name: str) -> None:
        machine = released(name)
        assert machine.on(ev.TargetDisconnected()) == []
        assert names(machine.on(ev.TargetReconnected()))[-1] == "TellReleased"
        assert names(machine.on(ev.Missing(0))) == ["Ship", "TellReleased"]
        assert machine.on(ev.Missing(0)) == [], "on this connection it is under way"
        assert names(machine.on(ev.TargetReconnected()))[-1] == "TellReleased"
        assert names(machine.on(ev.Missing(0))) == ["Ship", "TellReleased"]
        assert names(machine.on(ev.Served(0))) == ["Forget", "End"]
        assert machine.on(ev.Served(0)) == machine.on(ev.TargetReconnected()) == []

    @every_protocol
    def test_goes_on_after_a_restart_with_what_was_released(self, name: str) -> None:
        machine = Origin.resumed(PROTOCOLS[name], {3: ONE, 5: TWO})
        assert names(machine.on(ev.TargetReconnected())).count("TellReleased") == 2
        assert names(machine.on(ev.Served(5))) == ["Forget"]
        assert machine.on(ev.Served(3))[-1] == ev.End(2, 0, "")

    @every_protocol
    def test_does_not_mind_steps_of_an_earlier_generation(self, name: str) -> None:
        machine = Origin.resumed(PROTOCOLS[name], {3: ONE})
        assert machine.on(ev.Prepared(1)) == machine.on(ev.Missing(0)) == []
        assert machine.phase(1) is Phase.DROPPED

    @every_protocol
    def test_ends_once(self, name: str) -> None:
        machine, _ = begun(name, ONE, TWO)
        first = machine.on(ev.AbortRequested("enough"))
        assert first[-1] == ev.End(0, 2, "enough")
        assert machine.on(ev.TargetDisconnected()) == []

    @every_protocol
    def test_is_drawn_with_a_line_for_every_transition(self, name: str) -> None:
        assert len(drawn(PROTOCOLS[name])) == len(PROTOCOLS[name].table)

    @pytest.mark.parametrize(
        "name", sorted({*NAMES} - {"live-unordered"})
    )  # there what is shipped was released: it fits
    def test_declined_step_goes_on_here_until_the_next_batch(self, name: str) -> None:
        machine = cut(name, ONE)
        assert names(machine.on(ev.Declined(0))) == ["Resume"]
        assert names(machine.on(ev.BatchBegan())) == ["Cut", "Ship"]


class TestOwnWay:
    def test_pause_cuts_and_ships_at_once(self) -> None:
        _, effects = begun("pause", ONE)
        assert names(effects) == ["Cut", "Ship"]

    def test_pause_joins_nothing_not_even_what_is_empty(self) -> None:
        machine = Origin(PROTOCOLS["pause"], [ONE, TWO], [0, 0])
        assert machine.on(ev.Begun()) == [ev.Cut(0, ONE), ev.Ship(0, ONE)]

    def test_fetch_ships_what_is_wanted_out_of_turn(self) -> None:
        machine, effects = begun("fetch", ONE, TWO, side_by_side=1)
        assert names(effects) == ["Lend", "Lend", "Cut", "Ship"]
        assert machine.on(ev.UnitsRequested(Units.of(Unit("key", 6)))) == [ev.Cut(1, TWO), ev.Ship(1, TWO)]
        assert machine.on(ev.UnitsRequested(TWO)) == []

    def test_push_sends_what_most_rows_wait_for(self) -> None:
        one, two, three = (Units.of(Unit("group", at)) for at in (2, 3, 4))
        third = PROTOCOLS["push"].parcel_bytes // 3
        machine = Origin(PROTOCOLS["push"], [one, two, three], [third] * 3, side_by_side=1)
        assert machine.on(ev.Begun()) == [ev.Offer(one | two | three)]
        machine.on(ev.Waiting(Unit("group", 3), 5, 1.0))
        (ship,) = [e for e in machine.on(ev.Offered(one | two | three)) if isinstance(e, ev.Ship)]
        assert ship.units == one | two | three, "all that fits a parcel"

        machine = Origin(PROTOCOLS["push"], [one, two, three], [LARGE, 10, 10], side_by_side=1)
        assert machine.on(ev.Begun()) == [ev.Offer(one | two | three)]
        machine.on(ev.Waiting(Unit("group", 4), 5, 1.0))
        machine.on(ev.Waiting(Unit("group", 3), 1, 0.5))
        (ship,) = [e for e in machine.on(ev.Offered(one | two | three)) if isinstance(e, ev.Ship)]
        assert ship.units == two | three, "those that most rows wait for"

    def test_push_has_no_more_rows_wait_than_it_can_soon_serve(self) -> None:
        three = Units.of(Unit("group", 2))
        machine = Origin(PROTOCOLS["push"], [ONE, TWO, three], [LARGE, LARGE, LARGE], side_by_side=1)
        assert machine.on(ev.Begun()) == [ev.Offer(ONE)]
        assert machine.on(ev.Offered(ONE)) == [ev.Lend(ONE), ev.Cut(0, ONE), ev.Ship(0, ONE), ev.Offer(TWO)]
        assert machine.on(ev.Offered(TWO)) == [ev.Lend(TWO)]
        assert machine.on(ev.Offered(TWO)) == [], "told again"
        for event in (ev.Prepared(0), ev.Released(0)):
            machine.on(event)
        assert machine.on(ev.Served(0)) == [ev.Forget(0, ONE), ev.Cut(1, TWO), ev.Ship(1, TWO), ev.Offer(three)]

    def test_fetch_ships_all_that_is_wanted_at_once_as_one_step(self) -> None:
        three = Units.of(Unit("group", 2))
        machine, _ = begun("fetch", ONE, TWO, three, side_by_side=1)
        assert machine.on(ev.UnitsRequested(TWO | three)) == [ev.Cut(3, TWO | three), ev.Ship(3, TWO | three)]

    @pytest.mark.parametrize("name", ["live", "live-unordered", "standby"])
    def test_copies_before_it_cuts(self, name: str) -> None:
        machine, effects = begun(name, ONE)
        assert effects == [ev.Copy(0, ONE, "changes" if name == "standby" else "rows")]
        assert machine.on(ev.CaughtUp(0)) == []
        assert machine.on(ev.Copied(0)) == []

    def test_a_standby_copies_one_step_after_another_though_none_is_handed_over(self) -> None:
        machine, effects = begun("standby", ONE, TWO, side_by_side=1)
        assert effects == [ev.Copy(0, ONE, "changes")]
        assert machine.on(ev.Copied(0)) == [ev.Copy(1, TWO, "changes")]

    def test_live_cuts_when_the_target_has_caught_up(self) -> None:
        machine, _ = begun("live", ONE)
        machine.on(ev.Copied(0))
        assert names(machine.on(ev.CaughtUp(0))) == ["Cut", "Ship"]

    def test_unordered_lets_go_before_it_ships(self) -> None:
        machine, _ = begun("live-unordered", ONE)
        machine.on(ev.Copied(0))
        assert names(machine.on(ev.CaughtUp(0))) == ["Cut", "Release"]
        assert names(machine.on(ev.Released(0))) == ["Ship", "TellReleased"]

    def test_standby_stands_until_it_is_told(self) -> None:
        machine, _ = begun("standby", ONE)
        machine.on(ev.Copied(0))
        assert machine.on(ev.CaughtUp(0)) == machine.on(ev.BatchBegan()) == []
        assert names(machine.on(ev.HandoverRequested())) == ["Cut", "Ship"]

    def test_steps_go_one_after_the_other_unless_the_plan_says_otherwise(self) -> None:
        _, effects = begun("pause", ONE, TWO)
        assert names(effects) == ["Cut", "Ship"]
        _, effects = begun("pause", ONE, TWO, side_by_side=2)
        assert names(effects) == ["Cut", "Ship"] * 2


class TestByBacklog:
    def step(self, number: int, size: int, rows: int, since_s: float | None = None) -> Step:
        return Step(number, ONE, size, waiting_rows=rows, waiting_since_s=since_s)

    def test_takes_most_rows_by_byte(self) -> None:
        steps = [self.step(0, 10_000, 20, 0.0), self.step(1, 1_000, 10, 5.0), self.step(2, 100, 0)]
        assert by_backlog(steps).number == 1

    def test_takes_the_longest_waiting_among_equals_and_the_smallest_if_nothing_waits(self) -> None:
        assert by_backlog([self.step(0, 100, 3, 2.0), self.step(1, 100, 3, 1.0)]).number == 1
        assert by_backlog([self.step(0, 300, 0), self.step(1, 200, 0)]).number == 1


class TestTarget:
    def arrived(self, fits: bool = True) -> tuple[Target, list[ev.Effect]]:
        target = Target()
        target.on(ev.Announced(0, ONE))
        return target, target.on(ev.Arrived(0, ONE, fits))

    def prepared(self) -> Target:
        target, _ = self.arrived()
        assert target.on(ev.Durable(0)) == [ev.AnswerPrepared(0)]
        return target

    def test_serves_only_what_is_durable_and_released(self) -> None:
        target, effects = self.arrived()
        assert effects == [ev.Persist(0, ONE)]
        assert target.on(ev.ReleaseReported(0)) == []
        assert target.on(ev.Durable(0)) == [ev.Serve(0, ONE)]
        into = [(phase, event) for (phase, event), (after, _) in TABLE.items() if after is TargetPhase.SERVING]
        assert (TargetPhase.RELEASED_WRITING, ev.Durable) in into
        assert all(phase is not TargetPhase.ABSENT for phase, _ in into)

    def test_asks_when_the_connection_is_lost_and_never_decides_by_itself(self) -> None:
        target = self.prepared()
        assert target.on(ev.OriginDisconnected()) == [ev.AskOutcome(0)]
        assert target.steps[0].phase is TargetPhase.PREPARED

    @pytest.mark.parametrize(
        ("word", "effect"),
        [(ev.ReleaseReported(0), ev.Serve(0, ONE)), (ev.AbortReported(0), ev.Discard(0, ONE))],
    )
    def test_does_as_the_origin_says(self, word: ev.Event, effect: ev.Effect) -> None:
        assert self.prepared().on(word) == [effect]

    def test_restarted_target_asks_for_each_step(self) -> None:
        target = Target({0: ONE, 4: TWO})
        assert target.on(ev.OriginDisconnected()) == [ev.AskOutcome(0), ev.AskOutcome(4)]

    def test_says_what_is_missing_and_takes_it_then(self) -> None:
        target = Target()
        assert target.on(ev.ReleaseReported(2)) == [ev.AnswerMissing(2)]
        assert target.on(ev.ReleaseReported(2)) == [], "asked for once"
        assert target.on(ev.Arrived(2, ONE, True)) == [], "the end alone is not all of it"
        assert target.on(ev.Announced(2, ONE)) == [ev.Stage(2, ONE)]
        assert target.on(ev.Arrived(2, ONE, True)) == [ev.Persist(2, ONE)]
        assert target.on(ev.Durable(2)) == [ev.Serve(2, ONE)]

    def test_asks_for_what_is_missing_again_on_the_next_connection(self) -> None:
        target = Target()
        target.on(ev.ReleaseReported(2))
        target.on(ev.Announced(2, ONE))
        assert target.on(ev.OriginDisconnected()) == [ev.Discard(2, ONE)]
        assert not target.takes(2)
        assert target.on(ev.ReleaseReported(2)) == [ev.AnswerMissing(2)]

    def test_takes_nothing_for_a_step_that_it_has_or_that_its_origin_keeps(self) -> None:
        target = self.prepared()
        assert target.on(ev.Announced(0, TWO)) == []
        assert not target.takes(0)
        assert target.on(ev.ReleaseReported(0)) == [ev.Serve(0, ONE)], "what it has prepared"
        assert target.on(ev.Announced(0, ONE)) == [ev.Serve(0, ONE)], "the origin has not heard of it"
        assert not target.takes(0)
        target = Target()
        target.on(ev.AbortReported(0, ONE))
        assert target.on(ev.Announced(0, ONE)) == []
        assert not target.takes(0)

    def test_what_was_offered_and_never_announced_is_dropped_with_its_step(self) -> None:
        target = Target()
        target.on(ev.Promised(ONE | TWO))
        assert target.on(ev.AbortReported(0, ONE)) == [ev.Discard(0, ONE)]
        assert target.on(ev.OriginDisconnected()) == [ev.Discard(-1, TWO)]

    def test_declines_what_does_not_fit_and_takes_it_when_it_does(self) -> None:
        target, effects = self.arrived(fits=False)
        assert effects == [ev.AnswerDeclined(0)]
        assert target.on(ev.Arrived(0, ONE, True)) == [ev.Persist(0, ONE)]

    def test_confirms_again_what_it_is_told_again(self) -> None:
        target = self.prepared()
        assert target.on(ev.ReleaseReported(0)) == target.on(ev.ReleaseReported(0)) == [ev.Serve(0, ONE)]
        assert target.on(ev.AbortReported(0)) == target.on(ev.OriginDisconnected()) == []

    def test_drops_promises_with_the_connection(self) -> None:
        target = Target()
        assert target.on(ev.Promised(ONE | TWO)) == [ev.Expect(ONE | TWO), ev.AnswerOffered(ONE | TWO)]
        target.on(ev.Announced(0, ONE))
        assert target.on(ev.OriginDisconnected()) == [ev.Discard(0, ONE), ev.Discard(-1, TWO)]

    def test_what_was_dropped_is_not_dropped_again_with_the_connection(self) -> None:
        """By then another migration may be bringing it."""
        target = Target()
        target.on(ev.Promised(ONE))
        target.on(ev.Announced(0, ONE))
        assert target.on(ev.AbortReported(0)) == [ev.Discard(0, ONE)]
        assert target.on(ev.OriginDisconnected()) == []


@every_protocol
def test_units_with_timers_are_released_only_when_the_target_has_accepted_them(name: str) -> None:
    machine = Origin(with_timers(PROTOCOLS[name]), [ONE], [LARGE])
    effects = machine.on(ev.Begun())
    for event in (ev.Offered(ONE), ev.Copied(0), ev.CaughtUp(0), ev.HandoverRequested()):
        effects += machine.on(event)
    assert "Release" not in names(effects)
    assert "Ship" in names(effects)
    assert names(machine.on(ev.Prepared(0))) == ["Release"]
    assert names(machine.on(ev.Released(0))) == ["TellReleased"]


@every_protocol
def test_target_may_decline_units_with_timers(name: str) -> None:
    machine = Origin(with_timers(PROTOCOLS[name]), [ONE], [LARGE])
    for event in (ev.Begun(), ev.Offered(ONE), ev.Copied(0), ev.CaughtUp(0), ev.HandoverRequested()):
        machine.on(event)
    assert names(machine.on(ev.Declined(0))) == ["Resume"]


# -- events that cannot happen ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("live", ev.Prepared(0)),
        ("live", ev.Declined(0)),
        ("live", ev.Served(0)),
        ("pause", ev.Missing(0)),
        ("pause", ev.Released(0)),
        ("pause", ev.TargetLost(0)),
        ("push", ev.Turn(0)),
    ],
)
def test_an_event_that_cannot_happen_is_an_error_with_the_story_of_the_step(name: str, event: ev.Event) -> None:
    machine, _ = begun(name, ONE)
    with pytest.raises(InvariantBroken, match=rf"{type(event).__name__} cannot happen to step 0.*before: .*Turn to "):
        machine.on(event)


def test_a_target_is_told_of_a_write_that_it_has_not_begun() -> None:
    with pytest.raises(InvariantBroken, match="Durable cannot happen to step 0 in phase ABSENT; before: nothing"):
        Target().on(ev.Durable(0))


@every_protocol
def test_no_line_of_a_table_is_for_an_event_that_cannot_happen(name: str) -> None:
    """But for the events that the machine tells itself: it does so only where there is a line."""
    own = (ev.Turn, ev.TurnNear)
    lines = [(phase, event) for phase, event in PROTOCOLS[name].table if event not in own]
    assert [event for phase, event in lines if phase in IMPOSSIBLE.get(event, ())] == []


@every_protocol
def test_an_answer_that_comes_again_after_the_step_has_ended_changes_nothing(name: str) -> None:
    machine = released(name)
    machine.on(ev.Served(0))
    for event in (ev.Copied(0), ev.CaughtUp(0), ev.Prepared(0), ev.Declined(0), ev.Missing(0), ev.Served(0)):
        assert machine.on(event) == []

"""Every message of a hand-over that comes late, twice, or after its connection has ended: at the target, then at the origin.

The messages are those of real migrations, recorded between two hosts. They are told to the receiver of a fresh target up to a
point; there each of them is told once more; then the hand-over goes on, or its connection breaks. Keys that the target serves
must never change by it, and a migration that has ended leaves nothing: no copies, no accepted units, no rows that wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from godwit.migration import PROTOCOLS
from godwit.migration.events import Declined, Missing, Offered, Prepared, UnitsRequested
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.handover.connection import Answered, Reached
from godwit.runtime.handover.receiver import Receiver
from godwit.transport import bodies, typed
from tests.unit.pair import ALL, Note, Pair, joined, kind_is

KEYS = 8
FIRST = [(key, 1) for key in range(KEYS)]
CASES = [*sorted(PROTOCOLS), "backup"]
SHORT = ("fetch", "live-unordered", "standby")  # with these every kind of message is told but that of backups
MOST = [case if case in SHORT else pytest.param(case, marks=pytest.mark.long) for case in CASES]
HALVES = (Units(frozenset((0, 1))), Units(frozenset((2, 3))))

Message = tuple[Note, Any]


def begin(pair: Pair, case: str, *steps: Units) -> str:
    if case == "backup":
        return pair.migrate("pause", *steps, source="backup")
    return pair.migrate(case, *steps)


def recorded(pair: Pair, case: str) -> list[Message]:
    """What an origin says from beginning to end; rows are applied while the target follows."""
    pair.a.put(0, *FIRST)
    follows = case in ("live", "live-unordered", "standby")
    if follows:
        pair.back = kind_is("marker_reached")
    name = begin(pair, case)
    connection = pair.wait_connection(1)
    if follows:
        connection.back.wait_stopped()
        pair.a.put(0, *FIRST)
        connection.back.flow()
    if case == "standby":
        pair.a.moves.hand_over_standby(messages.HandOverStandby(name))
    assert pair.wait_ended().done == 1
    said = [(note, None if data is None else data.column(0)) for note, data in connection.there.log]
    return [(note, data) for note, data in said if note["kind"] not in ("hello", "bye")]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Message]]:
    found = {}
    for case in CASES:
        with joined(tmp_path_factory.mktemp(case)) as pair:
            found[case] = recorded(pair, case)
    return found


def body(data: Any) -> Any:
    from types import SimpleNamespace

    return None if data is None else bodies.body_of(SimpleNamespace(data=SimpleNamespace(column=lambda _: data)))


class Target:
    """A host that has heard a part of a hand-over."""

    def __init__(self, pair: Pair) -> None:
        self.side = pair.b
        self.receiver = self.connected()
        self.applied: dict[int, int] = {}

    def connected(self) -> Receiver:
        return Receiver(self.side.port, self.side.shared, "m0", "host-0")

    def hear(self, *script: Message) -> None:
        for note, data in script:
            self.receiver.take(typed.from_header(note, *messages.FROM_ORIGIN), body(data))

    def serves(self) -> bool:
        return bool(self.side.owned())

    def apply(self) -> None:
        if self.serves():
            self.applied |= dict(self.side.put(0, *FIRST, lane="own"))

    def lose_connection(self) -> None:
        self.receiver._connection_ended()

    def settle(self, pair: Pair) -> None:
        """Until what was asked of the origin is answered: it still has the keys, so it has kept them."""
        with self.side.shared.changed:
            assert self.side.shared.changed.wait_for(lambda: self.receiver._machine.settled, 10)


def fresh(tmp_path: Path, at: str) -> Any:
    return joined(tmp_path / at)


@pytest.mark.parametrize("case", MOST)
def test_what_a_target_hears_again_changes_nothing(
    tmp_path: Path, scripts: dict[str, list[Message]], case: str
) -> None:
    """After every message, each that has come so far once more; then the rest, rows, and all of it once more.

    Until the step is prepared its messages are one stream: all of a step that was shipped may come again, or nothing.
    """
    script = scripts[case]
    follows = any(note["kind"] in ("step_rows", "step_changes") for note, _ in script)
    final = 1 + follows
    prepared = 1 + next(at for at, (note, _) in enumerate(script) if note["kind"] == "step_end")
    for heard in range(1, len(script) + 1):
        for again in range(heard) if heard >= prepared else [heard if follows else -1]:
            with fresh(tmp_path, f"{heard}-{again}") as pair:
                target = Target(pair)
                target.hear(*script[:heard])
                target.apply()
                target.hear(*(script[:heard] if again < 0 else script[again : again + 1] if again < heard else ()))
                if target.serves():
                    assert pair.b.totals() == target.applied, (heard, again)
                    assert pair.b.left_over() == []
                else:
                    target.hear(*script[heard:])
                    target.apply()
                assert target.applied == dict.fromkeys(range(KEYS), final + 1), (heard, again)
                target.hear(*script)
                target.lose_connection()
                assert pair.b.totals() == target.applied
                assert pair.b.left_over() == []


@pytest.mark.parametrize("case", MOST)
def test_what_comes_late_is_gone_with_the_connection(
    tmp_path: Path, scripts: dict[str, list[Message]], case: str
) -> None:
    """The connection breaks before the origin has released; the origin keeps the keys, and another migration brings them."""
    script = [message for message in scripts[case] if message[0]["kind"] != "step_released"]
    for heard in range(1, len(script) + 1):
        for again in range(heard):
            with fresh(tmp_path, f"{heard}-{again}") as pair:
                pair.a.put(0, *FIRST)
                target = Target(pair)
                target.hear(*script[:heard], script[again])
                target.lose_connection()
                target.settle(pair)
                assert pair.b.left_over() == [], (script[heard - 1][0], script[again][0])
                assert pair.moved("pause").done == 1
                assert pair.b.totals() == dict(FIRST)


@pytest.mark.parametrize("case", MOST)
def test_what_comes_after_the_origin_has_kept_a_step_is_ignored(
    tmp_path: Path, scripts: dict[str, list[Message]], case: str
) -> None:
    """Aborted after every message; what was on its way arrives then, and the connection stays, for other steps."""
    script = [message for message in scripts[case] if message[0]["kind"] != "step_released"]
    number = next(note["step"] for note, _ in script if "step" in note)
    aborted: Note = {"kind": "step_aborted", "step": number, "units": ALL.to_dict()}
    for heard in range(1, len(script) + 1):
        with fresh(tmp_path, str(heard)) as pair:
            pair.a.put(0, *FIRST)
            target = Target(pair)
            target.hear(*script[:heard], (aborted, None))
            late = [message for message in script if message[0]["kind"] != "offer_units"]
            target.hear(*late, (aborted, None))
            assert pair.b.left_over() == [], script[heard - 1][0]
            assert pair.moved("pause").done == 1
            assert pair.b.totals() == dict(FIRST)


@pytest.mark.parametrize("case", CASES)
def test_a_target_that_has_forgotten_the_migration_knows_what_it_has_owned(
    tmp_path: Path, scripts: dict[str, list[Message]], case: str
) -> None:
    """It has restarted after it served, applied rows, and hears all of it on a new connection."""
    script = scripts[case]
    with fresh(tmp_path, "restarted") as pair:
        target = Target(pair)
        target.hear(*script)
        target.apply()
        pair.b.restart()
        target.receiver = target.connected()
        assert pair.b.totals() == target.applied
        for message in (*script, *script):
            target.hear(message)
            assert pair.b.totals() == target.applied, message[0]
            assert pair.b.owned() == ALL
        target.lose_connection()
        assert pair.b.left_over() == []


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stop", ["state_before_batch", "step_end", "step_released"])
def test_an_older_migration_does_not_touch_what_the_next_one_brings(
    tmp_path: Path, scripts: dict[str, list[Message]], case: str, stop: str
) -> None:
    """The keys have gone to the target and back, and are on their way again when all of the first hand-over comes once more."""
    script = [message for message in scripts[case] if message[0]["kind"] != "offer_units"]
    with fresh(tmp_path, "next") as pair:
        pair.a.put(0, *FIRST)
        assert pair.moved("pause").done == 1
        pair.b.put(0, *FIRST)
        assert pair.moved("pause", back=True).done == 1
        pair.a.put(0, *FIRST)
        pair.there = kind_is(stop)
        pair.migrate("pause")
        connection = pair.connections[-1] if len(pair.connections) > 2 else pair.wait_connection(3)
        connection.there.wait_stopped()
        connection.there.wait_idle()
        target = Target(pair)
        target.hear(*script)
        target.lose_connection()
        connection.there.flow()
        assert pair.wait_ended().done == 1
        assert pair.b.totals() == dict.fromkeys(range(KEYS), 3)
        assert pair.b.left_over() == pair.a.left_over() == []


def test_an_older_generation_of_the_origin_is_not_heard(tmp_path: Path) -> None:
    with fresh(tmp_path, "older") as pair:
        older = pair.a.log.generation
        pair.a.restart()
        pair.migrate("standby")
        pair.wait(lambda: len(pair.b.shared.accepted_units) == 1)
        receiver = next(iter(pair.b.moves._receivers.values()))
        before = receiver._connection
        receiver.serve(None, None, older)  # it reads nothing
        assert receiver._connection is before
        assert before is not None


def test_copies_that_an_heir_has_adopted_are_not_touched_by_their_standby(
    tmp_path: Path, scripts: dict[str, list[Message]]
) -> None:
    """Nothing of the connection that brought them counts any more, and what the heir gives up is gone."""
    script = [
        message
        for message in scripts["standby"]
        if message[0]["kind"] not in ("step_end", "step_released", "announce_step")
    ]
    with fresh(tmp_path, "heir") as pair:
        pair.a.put(0, *FIRST)
        pair.migrate("standby")
        pair.wait(lambda: any(r.copied_up_to is not None for r in pair.b.moves._receivers.values()))
        standby = next(iter(pair.b.moves._receivers.values()))
        pair.a.die()
        heir = pair.b.moves._receiver("will/sum", "host-0", pair.b.shared, ALL)
        assert heir.copied_up_to == 0
        assert pair.b.totals() == dict(FIRST)
        for note, data in (*script, *script):
            standby.take(typed.from_header(note, *messages.FROM_ORIGIN), body(data))
            assert pair.b.totals() == dict(FIRST), note
        standby.take(messages.StepAborted(0, ALL), None)
        standby.drop_copies()
        assert pair.b.totals() == dict(FIRST)
        assert heir.copied_up_to == 0
        heir.take(messages.StepAborted(0), None)
        assert pair.b.left_over() == []


def test_an_heir_drops_copies_that_are_not_whole_though_their_connection_is_still_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The origin was stopped while it copied: nothing ends its connection but the takeover. Before: the instance hung."""
    monkeypatch.setattr("godwit.runtime.handover.receiver.ORPHAN_WAIT_S", 0.05)
    with fresh(tmp_path, "stopped") as pair:
        pair.a.put(0, *FIRST)
        pair.there = kind_is("copy_marker")
        pair.migrate("standby")
        pair.wait_connection(1).there.wait_stopped()
        pair.connections[0].there.wait_idle()
        assert pair.b.totals() == dict(FIRST)
        heirs: list[Receiver] = []
        made = threading.Thread(
            target=lambda: heirs.append(pair.b.moves._receiver("will/sum", "host-0", pair.b.shared, ALL)), daemon=True
        )
        made.start()
        made.join(10)
        assert not made.is_alive(), "it waits for a lock that it has"
        assert heirs[0].copied_up_to is None
        assert pair.b.left_over() == []


# -- at the origin ---------------------------------------------------------------------------------------------------


def run(pair: Pair, case: str, *steps: Units) -> None:
    name = begin(pair, case, *steps)
    if case == "standby":
        pair.a.moves.hand_over_standby(messages.HandOverStandby(name))


def kinds_of(scripts: dict[str, list[Message]], case: str) -> list[str]:
    """What an origin says while no rows come."""
    return list(
        dict.fromkeys(note["kind"] for note, _ in scripts[case] if note["kind"] not in ("step_rows", "step_changes"))
    )


def check(pair: Pair) -> None:
    """Every unit has one owner with all of its rows, nothing is left, and all of it can go on to the other host and back."""
    a, b = pair.a.owned(), pair.b.owned()
    assert not a & b
    assert a | b == ALL
    assert pair.a.left_over() == pair.b.left_over() == []
    assert pair.a.totals() | pair.b.totals() == dict(FIRST)
    pair.there = pair.back = lambda _: False
    if pair.a.owned():
        assert pair.moved("pause", pair.a.owned()).dropped == 0
    assert pair.moved("fetch", back=True).dropped == 0
    assert pair.a.totals() == dict(FIRST)


@pytest.mark.parametrize("case", CASES)
def test_answers_that_come_twice_change_nothing(tmp_path: Path, scripts: dict[str, list[Message]], case: str) -> None:
    """Before each kind of message, and before the last word, all that the target has said so far is said once more."""
    for stop in kinds_of(scripts, case):
        with fresh(tmp_path, stop) as pair:
            pair.a.put(0, *FIRST)
            pair.there = kind_is(stop)
            run(pair, case, *HALVES)
            connection = pair.wait_connection(1)
            connection.there.wait_stopped()
            connection.back.repeat()
            connection.there.flow()
            assert pair.wait_ended().dropped == 0
            check(pair)


STALE: dict[str, Callable[[int], Any]] = {
    "step_missing": Missing,
    "step_prepared": Prepared,
    "step_declined": Declined,
    "units_expected": lambda _: Offered(ALL),
    "units_wanted": lambda _: UnitsRequested(ALL),
    "marker_reached": lambda step: Reached(step, 0),
}


@pytest.mark.parametrize("answer", sorted(STALE))
@pytest.mark.parametrize("case", ["pause", "live-unordered"])
def test_an_answer_of_an_older_connection_is_not_taken_for_one_of_the_next(
    tmp_path: Path, case: str, answer: str
) -> None:
    """The connection breaks after the step is released; what was heard on it is dealt with when there is another."""
    with fresh(tmp_path, answer) as pair:
        pair.a.put(0, *FIRST)
        pair.there = kind_is("step_released")
        run(pair, case)
        first = pair.wait_connection(1)
        first.there.wait_stopped()
        first.break_()
        second = pair.wait_connection(2)
        pair.wait(lambda: pair.a.mover.ended or second.there.stopped_at() is not None)
        pair.a.mover.post(Answered(STALE[answer](0), 1))
        pair.wait_sent()
        second.there.flow()
        assert pair.wait_ended().done == 1
        assert second.there.kinds().count("announce_step") <= 1
        assert second.there.kinds().count("step_end") <= 1
        check(pair)


@pytest.mark.parametrize("case", MOST)
def test_a_connection_that_breaks_before_any_message_leaves_one_owner(
    tmp_path: Path, scripts: dict[str, list[Message]], case: str
) -> None:
    answers = ("units_expected", "marker_reached", "step_prepared", "step_served")
    for stop in (*kinds_of(scripts, case), *answers):
        with fresh(tmp_path, f"broken-{stop}") as pair:
            pair.a.put(0, *FIRST)
            pair.there = pair.back = kind_is(stop)
            run(pair, case, *HALVES)
            connection = pair.wait_connection(1)
            if stop not in answers:
                connection.there.wait_stopped()
            elif not stopped(pair, connection.back.stopped_at):
                continue  # it is not said in this protocol
            pair.there = pair.back = lambda _: False
            connection.break_()
            pair.wait_ended()
            wait_settled(pair)
            check(pair)


@pytest.mark.parametrize("case", MOST)
@pytest.mark.parametrize("dies", ["origin", "target", "both"])
def test_a_host_that_dies_before_any_message_leaves_one_owner(
    tmp_path: Path, scripts: dict[str, list[Message]], case: str, dies: str
) -> None:
    for stop in kinds_of(scripts, case):
        with fresh(tmp_path, f"{dies}-{stop}") as pair:
            pair.a.put(0, *FIRST)
            pair.there = kind_is(stop)
            run(pair, case, *HALVES)
            pair.wait_connection(1).there.wait_stopped()
            pair.there = lambda _: False
            sides = {"origin": [pair.a], "target": [pair.b], "both": [pair.a, pair.b]}[dies]
            for side in sides:
                side.die()
            for side in sides:
                side.start()
            if pair.a.moves._movers:
                pair.wait_ended()
            wait_settled(pair)
            check(pair)


def stopped(pair: Pair, at: Callable[[], str | None]) -> bool:
    pair.wait(lambda: at() is not None or pair.a.mover.ended)
    return at() is not None


def wait_settled(pair: Pair) -> None:
    """Until the target has heard what became of every step."""
    pair.wait(lambda: not pair.b.left_over() and not pair.a.left_over(), lambda: str(pair.b.left_over()))


def test_units_are_named(scripts: dict[str, list[Message]]) -> None:
    """The table has every kind of message in it that a receiver knows."""
    kinds = {note["kind"] for script in scripts.values() for note, _ in script}
    unsaid = {messages.Hello, messages.Bye, messages.OriginProgress, messages.StepAborted}
    assert kinds == {message.kind for message in messages.FROM_ORIGIN if message not in unsaid}
    assert Unit("group", 0) in ALL

"""An heir by itself: what it tells its receiver, and that it stops telling when it is to give up."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.handover.answers import Answers
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.takeover.heir import Heir
from godwit.state.changelog import Changelog
from godwit.state.recovery import take_over
from tests.unit.test_instance import Sum, instance_of
from tests.unit.test_mover import in_a_batch

HEIR, LOST = "host-1", "host-0"


class Told:
    """Takes notes as a receiver does, the first of them only when it may."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.may = threading.Event()
        self.reached = threading.Event()
        self.copied_up_to: int | None = None
        self.handover = SimpleNamespace(written=None)
        self.answers = Answers()

    def drop_taken_over(self) -> None:
        return

    def copied_before(self, batch: int) -> bool:
        return True

    def ask_outcome(self, step: int) -> None:
        raise AssertionError(f"step {step} is not prepared")

    def take(self, message: messages.FromOrigin, body: Any) -> None:
        self.kinds.append(message.kind)
        self.reached.set()
        assert self.may.wait(10)


def left_by(checkpoint: Path) -> tuple[int, int]:
    """The log of a host that has applied rows of a batch, closed for good."""
    directory = host_directory(str(checkpoint), LOST)
    log, recovered = Changelog.open(directory)
    assert not list(recovered.parts())
    shared, _ = in_a_batch()
    instance = shared.instance
    state = [batch.serialize() for batch in instance.state.export(committed=False)]
    parts = [instance.define_part(), instance.own_part(), instance.mark_part()]
    log.flush(log.append([*parts, *(({"kind": "state", "op": instance.name, "batch": 0}, body) for body in state)]))
    log.close()
    _, left = take_over(directory, "process")
    return left.generation, left.next_lsn


def heir_of(checkpoint: Path, told: Told) -> Heir:
    log, _ = Changelog.open(host_directory(str(checkpoint), HEIR))
    port = HostServices(HEIR, str(checkpoint), "token", "", log, lambda: 0, lambda: False)
    shared = SharedInstance(instance_of(Sum()))
    shares = {"sum": Units(frozenset(range(4)))}
    request = messages.PrepareTakeover("w", LOST, shares, {"sum": HEIR}, *left_by(checkpoint))
    receiver: Any = told
    return Heir(port, request, lambda _: shared, lambda *_: receiver)


def test_a_log_is_told_as_an_origin_would(tmp_path: Path) -> None:
    told = Told()
    told.may.set()
    heir = heir_of(tmp_path, told)
    with heir.changed:
        assert heir.changed.wait_for(lambda: heir.state != "reading", 10)
    assert told.kinds == ["announce_step", "origin_progress", "step_changes", "step_end", "step_aborted"]
    assert heir.state == "failed", "nobody has said that it is prepared, so it has let go of it"


def test_copies_are_told_only_what_came_after_them(tmp_path: Path) -> None:
    """The rest of the log is read, and not replayed: it may be all the state there is."""
    told = Told()
    told.copied_up_to = 1
    told.may.set()
    heir = heir_of(tmp_path, told)
    with heir.changed:
        assert heir.changed.wait_for(lambda: heir.state != "reading", 10)
    assert told.kinds == ["origin_progress", "step_end", "step_aborted"]
    assert heir.report().by_copies


def test_an_heir_that_gives_up_prepares_nothing_any_more(tmp_path: Path) -> None:
    """What it had prepared after that would be held for ever: nobody would tell it what has become of it."""
    told = Told()
    heir = heir_of(tmp_path, told)
    assert told.reached.wait(10)
    giving_up = threading.Thread(target=heir.give_up)
    giving_up.start()
    while not heir._ending:
        giving_up.join(0.01)
    told.may.set()
    giving_up.join(10)
    assert told.kinds[-1] == "step_aborted"
    assert "step_end" not in told.kinds

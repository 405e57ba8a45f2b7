"""A task that waits for a lost host offers its task slot: the lost host may need that slot to start again.

A task that has waited for a while tells the driver its task attempt. If a host has no slot to start in, the driver lets Spark
kill the task. Spark does not count a kill as a failure and runs the task again; the waiting task ends itself at once. If the
driver does not answer, the task goes on waiting. Which task must give up its slot is decided by the driver, not here.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from godwit import ports
from godwit.errors import GodwitError, HostUnavailable
from godwit.runtime.messages import OfferSlot
from godwit.transport import line, typed

FOR_LEASE_S: Final = 0.3  # a host that gets a slot at once has a lease by then, or nearly so
FOR_ANSWER_S: Final = 1.0  # a host may need that long for a chunk; a host that waits for a lost host needs longer
PAUSE_S: Final = 0.25
PAUSE_S_MAX: Final = 2.0
CONNECT_S: Final = 2.0
CALL_S: Final = 5.0


class SlotGivenUp(HostUnavailable):
    """The task ends for a host that needs its slot. Nothing has failed, so users are not told of it."""


@dataclass(slots=True)
class TaskSlot:
    """The slot of one waiting task.

    `attempt`: Spark's id of the task attempt; None outside of a task, where no slot is offered.
    `taken`: the driver has decided that a host gets this slot.
    """

    controller: str
    token: str
    attempt: int | None
    taken: bool = False

    def offer(self) -> None:
        """Tell the driver that this task waits."""
        assert self.attempt is not None, "only a task has a slot to offer"
        client = line.connect(self.controller, self.token, CONNECT_S)
        try:
            with suppress(GodwitError):  # the driver is gone or busy: the task goes on waiting
                self.taken = typed.ask(client, OfferSlot(self.attempt), CALL_S).taken
        finally:
            client.close()

    def check(self) -> None:
        if self.taken:
            raise SlotGivenUp(
                "this task waited for a host that needs its task slot",
                todo="Nothing is to be done: Spark runs the task again, and does not count this as a failure",
            )


class SlotOffers:
    """The offers of one wait: the first comes after `after_s`, later ones with growing pauses."""

    def __init__(self, slot: TaskSlot, after_s: float) -> None:
        self.slot = slot
        self._due_s = ports.now_s() + after_s
        self._pause_s = PAUSE_S

    def taken(self) -> bool:
        """Whether the task must end. Offers the slot first if an offer is due."""
        slot = self.slot
        if not slot.taken and slot.controller and slot.attempt is not None and ports.now_s() >= self._due_s:
            slot.offer()
            self._due_s = ports.now_s() + self._pause_s
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return slot.taken

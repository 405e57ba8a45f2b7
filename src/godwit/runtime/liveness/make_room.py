"""A task that waits for a host makes room for it: the lost host may need the very task slot that the waiting task holds.

Whoever has waited for a while tells the driver which task it is in. If a host has no slot to start in, the driver has Spark
kill that task. Spark does not count a kill as a failure and runs the task again; the task ends here at once. Without an answer
the task goes on waiting. Which task has to leave is not decided here.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from godwit import ports
from godwit.errors import GodwitError, HostUnavailable
from godwit.transport import line

FOR_LEASE_S: Final = 0.3  # a host that finds a slot at once is back by then, or nearly so
FOR_ANSWER_S: Final = 1.0  # a host may take that long for a chunk; one that waits for a lost host takes longer
PAUSE_S: Final = 0.25
PAUSE_S_MAX: Final = 2.0
CONNECT_S: Final = 2.0
CALL_S: Final = 5.0


@dataclass(slots=True)
class Room:
    """The slot that a task holds. `attempt`: Spark's number of the task; None outside of tasks, where nobody is asked."""

    controller: str
    token: str
    attempt: int | None
    left: bool = False

    def ask(self) -> None:
        """Tell the driver that this task waits."""
        client = line.connect(self.controller, self.token, CONNECT_S)
        try:
            with suppress(GodwitError):  # the driver is gone or busy: who waits goes on waiting
                self.left = bool(client.call("waits", timeout_s=CALL_S, attempt=self.attempt)["leave"])
        finally:
            client.close()

    def check(self) -> None:
        if self.left:
            raise HostUnavailable(
                "this task waited for a host that needs its task slot",
                todo="Nothing is to be done: Spark runs the task again, and does not count this as a failure",
            )


class Asks:
    """How often one wait asks: soon at first, then ever more seldom."""

    def __init__(self, room: Room, after_s: float) -> None:
        self.room = room
        self._due_s = ports.now_s() + after_s
        self._pause_s = PAUSE_S

    def look(self) -> bool:
        """Whether the task is to end; asks if it is time."""
        room = self.room
        if not room.left and room.controller and room.attempt is not None and ports.now_s() >= self._due_s:
            room.ask()
            self._due_s = ports.now_s() + self._pause_s
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return room.left

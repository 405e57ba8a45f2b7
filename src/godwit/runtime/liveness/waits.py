"""Ends waits for a host that will never answer: one that was lost though its connections never broke.

A process that is stopped, or a machine that vanishes, leaves its streams open. Whether the host is lost is not decided here:
whoever waits goes on waiting until the host's lease is another's or gone, which is so when the lost host has a successor or
heirs. Only who has waited for a while asks, so nothing is read while answers come. A host that answers late may itself wait for
a lost one: so the driver is asked, too, whether that one needs the task slot of whoever waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from godwit import ports
from godwit.runtime.liveness.leases import Lease, read_lease
from godwit.runtime.liveness.make_room import FOR_ANSWER_S, Asks, Room

ASK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class _Wait:
    directory: Path
    lease: Lease | None
    cancel: Callable[[], None]
    since_s: float
    asks: Asks | None


class Waits:
    """One thread for all that wait in a process; it begins with the first."""

    def __init__(self) -> None:
        self._lock = ports.lock()
        self._waits: dict[int, _Wait] = {}  # by thread
        self._asking: ports.Thread | None = None

    @contextmanager
    def over(
        self, directory: Path, lease: Lease | None, cancel: Callable[[], None], room: Room | None = None
    ) -> Iterator[None]:
        """What is done in here waits for the host of this lease; `cancel` ends it, called by another thread, perhaps often.

        `room`: of the Spark task that waits, if it is one.
        """
        me = ports.thread_id()
        wait = _Wait(directory, lease, cancel, ports.now_s(), None if room is None else Asks(room, FOR_ANSWER_S))
        with self._lock:
            self._waits[me] = wait
            if self._asking is None:
                self._asking = ports.thread(self._run, "godwit-waits")
                self._asking.start()
        try:
            yield
        finally:
            with self._lock:
                del self._waits[me]

    def _run(self) -> None:
        pause = ports.event()
        while not pause.wait(ASK_S):
            now_s = ports.now_s()
            with self._lock:
                long = [wait for wait in self._waits.values() if now_s - wait.since_s > ASK_S]
            for wait in long:
                if _in_vain(wait) or (wait.asks is not None and wait.asks.look()):
                    wait.cancel()


def _in_vain(wait: _Wait) -> bool:
    with suppress(OSError):  # what cannot be read now is asked for again
        return read_lease(wait.directory) != wait.lease
    return False


def waits() -> Waits:
    """The process's own."""
    return ports.of_process(Waits)

"""Ends waits for a lost host whose connections never broke.

A stopped process, or a machine that vanishes, leaves its streams open. Whether the host is lost is not decided here: a waiting
thread goes on until the lease of the host has changed or ended, which happens when the lost host has a successor or heirs. A
lease is read only after a wait has lasted for a while, so nothing is read while answers come in time. A host that answers late
may itself wait for a lost host, so a waiting Spark task also offers the driver its task slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from godwit import ports
from godwit.errors import GodwitError
from godwit.runtime.liveness.leases import Lease, read_lease
from godwit.runtime.liveness.slot_offers import FOR_ANSWER_S, SlotOffers, TaskSlot

CHECK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class _Wait:
    directory: Path
    lease: Lease | None
    cancel: Callable[[], None]
    since_s: float
    offers: SlotOffers | None


class Waits:
    """All waits of a process. One thread checks them; the thread starts with the first wait."""

    def __init__(self) -> None:
        self._lock = ports.lock()
        self._waits: dict[int, _Wait] = {}  # by thread
        self._checking: ports.Thread | None = None

    @contextmanager
    def over(
        self, directory: Path, lease: Lease | None, cancel: Callable[[], None], slot: TaskSlot | None = None
    ) -> Iterator[None]:
        """The body of the `with` block waits for the host of this lease; `cancel` ends that wait.

        Another thread calls `cancel`, perhaps several times. `slot`: of the waiting Spark task, if a task waits.
        """
        me = ports.thread_id()
        wait = _Wait(directory, lease, cancel, ports.now_s(), None if slot is None else SlotOffers(slot, FOR_ANSWER_S))
        with self._lock:
            self._waits[me] = wait
            if self._checking is None:
                self._checking = ports.thread(self._run, "godwit-waits")
                self._checking.start()
        try:
            yield
        finally:
            with self._lock:
                del self._waits[me]

    def _run(self) -> None:
        pause = ports.event()
        while not pause.wait(CHECK_S):
            now_s = ports.now_s()
            with self._lock:
                long = [wait for wait in self._waits.values() if now_s - wait.since_s > CHECK_S]
            for wait in long:
                if _in_vain(wait) or (wait.offers is not None and wait.offers.taken()):
                    with suppress(GodwitError):  # the other waits must end too, also in a host that is ending
                        wait.cancel()


def _in_vain(wait: _Wait) -> bool:
    with suppress(OSError):  # a lease that cannot be read now is read again at the next check
        return read_lease(wait.directory) != wait.lease
    return False


def waits() -> Waits:
    """The waits of this process."""
    return ports.of_process(Waits)

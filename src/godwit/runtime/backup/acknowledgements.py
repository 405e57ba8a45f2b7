"""Which answers wait for the backup, and for how long: the place where those who answer and the one who sends meet.

While the backup stands, an answer leaves when the peer has what it rests on. If the peer is lost, that the backup no longer
counts is written down first, and then the answer leaves all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from godwit import ports
from godwit.errors import GodwitError

_WAITS_KEPT: Final = 2000


class Acks:
    """`disown`: writes down that there is no backup from now on; whatever it raises, nobody is answered any more."""

    def __init__(self, disown: Callable[[], None]) -> None:
        self.waits = False  # answers do
        self.stands = False  # and that is written down
        self.acked_lsn = 0
        self._synced_lsn = self._sync_wanted_lsn = 0
        self._news = False
        self._broken = True
        self._disown = disown
        self._failure: GodwitError | None = None
        self._changed = ports.condition()
        self._since_s: dict[int, float] = {}  # when whoever waits began to
        self._waited_s: deque[float] = deque(maxlen=_WAITS_KEPT)

    # -- those who answer --------------------------------------------------------------------------------------------

    def wait(self, lsn: int, synced: bool) -> None:
        """Until the backup has it, or does not count any more."""
        waits = self.waits  # looked at first: it is ended after it is known why, and then the answer must not leave
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if not waits:
            return
        began_s = ports.now_s()
        with self._changed:
            me = ports.thread_id()
            self._since_s[me] = began_s
            try:
                self._wait(lsn, synced)
            finally:
                del self._since_s[me]
                self._waited_s.append(ports.now_s() - began_s)

    def _wait(self, lsn: int, synced: bool) -> None:
        self._news = True
        if synced:
            self._sync_wanted_lsn = max(self._sync_wanted_lsn, lsn)
        self._changed.notify_all()
        while self.waits and not self._has(lsn, synced):
            if self._broken:
                self._give_up()
            else:
                self._changed.wait()
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _has(self, lsn: int, synced: bool) -> bool:
        return self.acked_lsn >= lsn and (not synced or self._synced_lsn >= lsn)

    # -- the one who sends -------------------------------------------------------------------------------------------

    def connected(self) -> None:
        with self._changed:
            self._broken = False

    def begin(self) -> None:
        """From now on answers wait, so that the backup can catch up with those that have not."""
        with self._changed:
            self.waits = True

    def stand(self, write_down: Callable[[], None]) -> None:
        with self._changed:
            if self.waits:  # else somebody has given up meanwhile
                write_down()
                self.stands = True

    def reached(self, lsn: int, synced: bool) -> None:
        with self._changed:
            self.acked_lsn = max(self.acked_lsn, lsn)
            if synced:
                self._synced_lsn = max(self._synced_lsn, lsn)
            self._changed.notify_all()

    def sync_wanted(self) -> bool:
        with self._changed:
            return self._sync_wanted_lsn > self._synced_lsn

    def wait_news(self, timeout_s: float) -> bool:
        """Until somebody waits for something that was not there when this was last asked."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._news, timeout_s)
            self._news = False
            return found

    def wake(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def broke(self) -> None:
        """There is no connection: who waits now does not get what it waits for."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()

    def give_up(self) -> None:
        with self._changed:
            self._give_up()

    def _give_up(self) -> None:
        try:
            if self.stands:
                self._disown()
        except GodwitError as error:
            self._failure = self._failure or error
        self.waits = self.stands = False
        self._changed.notify_all()

    def fail(self, error: GodwitError) -> None:
        """Nobody is answered any more: this process has been replaced."""
        with self._changed:
            self._failure = self._failure or error
            self.waits = self.stands = False
            self._changed.notify_all()

    # -- looking in --------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> GodwitError | None:
        return self._failure

    def longest_wait_s(self) -> float:
        with self._changed:
            return ports.now_s() - min(self._since_s.values()) if self._since_s else 0.0

    def waited_ms(self) -> tuple[float, float]:
        """Mean and 99th percentile, of late."""
        with self._changed:
            waits = sorted(self._waited_s)
        if not waits:
            return 0.0, 0.0
        return 1000 * sum(waits) / len(waits), 1000 * waits[int(0.99 * (len(waits) - 1))]

"""Which answers of a host wait for its backup, and for how long. Threads that answer routers and the sending thread share it.

While the backup stands, an answer leaves the host only after the peer has acknowledged the log up to that answer. If the peer
is lost, the host first records that it has no backup, and then the answer leaves without the peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from godwit import ports
from godwit.errors import GodwitError

_WAITS_MEASURED: Final = 2000


class Acks:
    """`record_none`: records that there is no backup from now on; if it raises, the host answers nothing any more."""

    def __init__(self, record_none: Callable[[], None]) -> None:
        self.waits = False  # whether answers wait for the peer
        self.stands = False  # whether the newest record says so
        self.acked_lsn = 0
        self._synced_lsn = self._sync_wanted_lsn = 0
        self._news = False
        self._broken = True
        self._record_none = record_none
        self._failure: GodwitError | None = None
        self._changed = ports.condition()
        self._since_s: dict[int, float] = {}  # when each waiting thread began to wait
        self._waited_s: deque[float] = deque(maxlen=_WAITS_MEASURED)

    # -- called by threads that answer -------------------------------------------------------------------------------

    def wait(self, lsn: int, synced: bool) -> None:
        """Return when the peer has the log up to `lsn` (`synced`: durably), or when there is no backup any more."""
        # Read before `_failure`: `fail` sets `_failure` first and `waits` last, and after a failure no answer may leave.
        waits = self.waits
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

    # -- called by the sending thread --------------------------------------------------------------------------------

    def connected(self) -> None:
        with self._changed:
            self._broken = False

    def begin(self) -> None:
        """From now on answers wait; the backup stands as soon as the peer has the log up to all earlier answers."""
        with self._changed:
            self.waits = True

    def stand(self, record: Callable[[], None]) -> None:
        with self._changed:
            if self.waits:  # otherwise another thread has given up the backup meanwhile
                record()
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
        """Wait until a thread has begun to wait since the last call; False after `timeout_s`."""
        with self._changed:
            news = self._changed.wait_for(lambda: self._news, timeout_s)
            self._news = False
            return news

    def wake(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def broke(self) -> None:
        """The connection to the peer broke: a waiting answer gives up the backup."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()

    def give_up(self) -> None:
        with self._changed:
            self._give_up()

    def _give_up(self) -> None:
        try:
            if self.stands:
                self._record_none()
        except GodwitError as error:
            self._failure = self._failure or error
        self.waits = self.stands = False
        self._changed.notify_all()

    def fail(self, error: GodwitError) -> None:
        """Answer nothing any more: this process has been replaced."""
        with self._changed:
            self._failure = self._failure or error
            self.waits = self.stands = False
            self._changed.notify_all()

    # -- measures ----------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> GodwitError | None:
        return self._failure

    def longest_wait_s(self) -> float:
        with self._changed:
            return ports.now_s() - min(self._since_s.values()) if self._since_s else 0.0

    def waited_ms(self) -> tuple[float, float]:
        """Mean and 99th percentile of recent waits."""
        with self._changed:
            waits = sorted(self._waited_s)
        if not waits:
            return 0.0, 0.0
        return 1000 * sum(waits) / len(waits), 1000 * waits[int(0.99 * (len(waits) - 1))]

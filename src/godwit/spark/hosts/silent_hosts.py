"""Ends the Spark jobs of hosts whose heartbeats have stopped, so that they count as lost.

Spark reports the end of a task, but not that a process is stopped or hangs, or that its machine is gone. What happens after a
loss is decided in `lost_hosts`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

from godwit import ports
from godwit.control.heartbeats import TICK_S, Heartbeats, Silent
from godwit.errors import GodwitError
from godwit.runtime.liveness.heartbeat_datagrams import Heartbeat, HeartbeatReceiver


class HostJobs(Protocol):
    """The Spark jobs of the hosts (`flock_hosts.Hosts`)."""

    def serves(self, name: str, generation: int) -> bool: ...

    def end(self, name: str, generation: int, noticed: str) -> None: ...


class Notes(Protocol):
    """Notes for people (`checkpoint.history.History`)."""

    def add(self, event: str, **fields: Any) -> object: ...


class SilentHostMonitor:
    """One thread for all hosts. Without a receiver there are no heartbeats: `address` is empty, and hosts send none."""

    def __init__(self, receiver: HeartbeatReceiver | None, silent_s: float, hosts: HostJobs, history: Notes) -> None:
        self._hosts = hosts
        self._history = history
        self._receiver = receiver
        self.address = "" if receiver is None else receiver.address
        self._lock = ports.lock()
        self._heartbeats = Heartbeats(silent_s)
        self._stop = ports.event()
        self._thread = ports.thread(self._run, "godwit-heartbeats")

    def start(self) -> None:
        if self._receiver is not None:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def forget(self, host: str) -> None:
        """Ignore the silence of a host that ends in a known way."""
        with self._lock:
            self._heartbeats.forget(host)

    def _run(self) -> None:
        """Heartbeats are read before silence is judged: they may have waited while this thread was delayed."""
        assert self._receiver is not None
        look_s = ports.now_s()
        while not self._stop.is_set():
            self._take(self._receiver.receive(look_s - ports.now_s()))
            now_s = ports.now_s()
            if now_s >= look_s:
                look_s = now_s + TICK_S
                with self._lock:
                    silent_hosts = self._heartbeats.silent(now_s)
                for silent in silent_hosts:
                    self._end(silent)

    def _take(self, beats: list[Heartbeat]) -> None:
        for beat in beats:
            with self._lock:
                back_s = self._heartbeats.beat(beat.host, beat.generation, ports.now_s())
            if back_s is not None:  # for people: its job was ended without need, or a stopped process was continued
                self._tell("alive", Silent(beat.host, beat.generation, back_s))

    def _end(self, silent: Silent) -> None:
        if self._hosts.serves(silent.host, silent.generation):
            self._tell("silent", silent)
            self._hosts.end(silent.host, silent.generation, f"no heartbeat for {silent.for_s:.1f} s")

    def _tell(self, event: str, silent: Silent) -> None:
        with suppress(GodwitError):  # a full disk must not delay the end of a lost host
            self._history.add(event, host=silent.host, generation=silent.generation, for_s=round(silent.for_s, 3))

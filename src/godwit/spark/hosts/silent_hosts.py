"""Notices hosts that have fallen silent, and ends their Spark jobs: from there on they are lost as any other host is.

Spark tells when a task has ended, but not that a process is stopped, or hangs, or that its machine is gone. This makes such
a task end; what is done then is decided where every lost host is dealt with.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from godwit.control.heartbeats import TICK_S, Heartbeats, Silent
from godwit.errors import GodwitError
from godwit.runtime.liveness.heartbeat_datagrams import Heartbeat, HeartbeatReceiver
from godwit.spark.checkpoint.history import History
from godwit.spark.hosts.flock_hosts import Hosts


class SilentHostMonitor:
    """One thread for all hosts. Without a receiver nobody listens, and hosts are told to send nothing."""

    def __init__(self, receiver: HeartbeatReceiver | None, silent_s: float, hosts: Hosts, history: History) -> None:
        self._hosts = hosts
        self._history = history
        self._receiver = receiver
        self.address = "" if receiver is None else receiver.address
        self._lock = threading.Lock()
        self._heartbeats = Heartbeats(silent_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="godwit-noticing", daemon=True)

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
        """It ends, and that is known: its silence says nothing."""
        with self._lock:
            self._heartbeats.forget(host)

    def _run(self) -> None:
        """What has come is heard before it is asked who is silent: it may have lain there while this thread was held up."""
        assert self._receiver is not None
        look_s = time.monotonic()
        while not self._stop.is_set():
            self._take(self._receiver.receive(look_s - time.monotonic()))
            now_s = time.monotonic()
            if now_s >= look_s:
                look_s = now_s + TICK_S
                with self._lock:
                    found = self._heartbeats.silent(now_s)
                for silent in found:
                    self._end(silent)

    def _take(self, beats: list[Heartbeat]) -> None:
        for beat in beats:
            with self._lock:
                back_s = self._heartbeats.beat(beat.host, beat.generation, time.monotonic())
            if back_s is not None:  # for people: it was ended for nothing, or somebody has let it go on
                self._tell("alive", Silent(beat.host, beat.generation, back_s))

    def _end(self, silent: Silent) -> None:
        if self._hosts.serves(silent.host, silent.generation):
            self._tell("silent", silent)
            self._hosts.end(silent.host, silent.generation, f"no heartbeat for {silent.for_s:.1f} s")

    def _tell(self, event: str, silent: Silent) -> None:
        with suppress(GodwitError):  # a full disk does not keep a lost host from being noticed
            self._history.add(event, host=silent.host, generation=silent.generation, for_s=round(silent.for_s, 3))

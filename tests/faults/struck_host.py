"""A host whose own code strikes at named steps of a hand-over: the process is killed, its peer is, or their connection is cut.

The test starts its hosts from this file instead of the product's, so nothing of it is in the product. A plan in a file names
one migration and what is to happen to it, strike after strike. Each strike leaves a mark before it is done, so that a test can
tell where it came down. Every step that is passed is written to a trace: a sweep goes through what real runs have passed.

Steps: `do:` an effect of either machine; `send:` and `take:` a message, at the origin and at the target; `append:` and `sync:`
what an effect writes to the log; `forget` the origin's last chore. Each has a before and an after.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from godwit.migration.events import AbortRequested
from godwit.runtime.handover.connection import TargetConnection
from godwit.runtime.handover.origin_effects import OriginEffects
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.host.host import Host
from godwit.runtime.liveness.leases import host_directory, read_lease
from godwit.state.changelog import Changelog


class Striker:
    def __init__(self, checkpoint: str, room: Path) -> None:
        self._checkpoint = checkpoint
        self._room = room
        self._lock = threading.Lock()
        self._passed: Counter[tuple[str, str, str, str]] = Counter()
        self._doing = threading.local()  # the effect that a thread carries out
        self.cut: set[int] = set()  # receivers whose connection ends with the message at hand

    @contextmanager
    def around(self, side: str, party: Any, what: str) -> Iterator[None]:
        self.reach(side, party, what, "before")
        outer, self._doing.now = getattr(self._doing, "now", None), (side, party, what)
        try:
            yield
        finally:
            self._doing.now = outer
        self.reach(side, party, what, "after")

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """A thread writes to the log: of interest while it carries out an effect."""
        doing = getattr(self._doing, "now", None)
        if doing is None:
            yield
            return
        side, party, effect = doing
        self.reach(side, party, f"{what}:{effect}", "before")
        yield
        self.reach(side, party, f"{what}:{effect}", "after")

    def reach(self, side: str, party: Any, what: str, when: str) -> None:
        migration = party.handover.request.id if side == "origin" else party.id
        plan = self._plan()
        if plan.get("migration") != migration:
            return
        with self._lock:
            self._passed[migration, side, what, when] += 1
            nth = self._passed[migration, side, what, when]
            point = [side, what, when]
            done = self._next(plan)
            line = json.dumps({"point": point, "nth": nth, "strikes": done, "pid": os.getpid()})
            with (self._room / f"trace-{migration}").open("a") as trace:
                trace.write(line + "\n")
            strikes = plan["strikes"]
            if done == len(strikes) or strikes[done]["point"] != point:
                return
            fault = strikes[done]["fault"]
            victim = self._peer_pid(side, party) if fault == "kill_peer" else os.getpid()
            with (self._room / f"mark-{migration}-{done}.new").open("x") as mark:
                mark.write(json.dumps({"point": point, "victim": victim}))
            Path(mark.name).rename(self._room / f"mark-{migration}-{done}")
            if fault.startswith("kill"):
                os.kill(victim, signal.SIGKILL)
            else:
                getattr(self, f"_{fault}")(side, party, when)

    def _plan(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            return dict(json.loads((self._room / "plan.json").read_text()))
        return {}

    def _next(self, plan: dict[str, Any]) -> int:
        done = 0
        while (self._room / f"mark-{plan['migration']}-{done}").exists():
            done += 1
        return done

    # -- what is done to it ------------------------------------------------------------------------------------------

    def _peer_pid(self, side: str, party: Any) -> int:
        peer = party.handover.request.target if side == "origin" else party.origin
        lease = read_lease(host_directory(self._checkpoint, peer))
        assert lease is not None
        return lease.pid

    def _cut(self, side: str, party: Any, when: str) -> None:
        """At the target, what is answered at this step is lost if the cut comes before it."""
        if side == "origin":
            if party.connection._reader is not None:
                party.connection._reader.cancel()
            return
        self.cut.add(id(party))
        if when == "before":
            party.answers.stop()

    def _abort(self, side: str, party: Any, when: str) -> None:
        party.handover.post(AbortRequested("struck"))


def arm(striker: Striker) -> None:
    around(striker, OriginEffects, "do", "origin", lambda effect: f"do:{type(effect).__name__}")
    around(striker, OriginEffects, "forget", "origin", lambda *_: "forget")
    around(striker, Receiver, "_do", "target", lambda effect: f"do:{type(effect).__name__}")
    around(striker, Receiver, "_take", "target", lambda message, _: f"take:{message.kind}")
    plain_send, plain_hear = TargetConnection.send, Receiver._receive
    effects: dict[int, OriginEffects] = {}
    plain_init = OriginEffects.__init__

    def init(self: OriginEffects, *given: Any, **named: Any) -> None:
        plain_init(self, *given, **named)
        effects[id(self.connection)] = self

    def send(self: TargetConnection, queued: Any) -> int:
        with striker.around("origin", effects[id(self)], f"send:{queued.message.kind}"):
            return plain_send(self, queued)

    def hear(self: Receiver, *given: Any) -> bool:
        goes_on = plain_hear(self, *given)
        if id(self) in striker.cut:
            striker.cut.discard(id(self))
            return False
        return goes_on

    OriginEffects.__init__ = init  # type: ignore[method-assign]
    TargetConnection.send = send  # type: ignore[method-assign]
    Receiver._receive = hear  # type: ignore[method-assign]
    for name in ("append", "sync"):
        writing(striker, name)


def around(striker: Striker, owner: type, name: str, side: str, named: Any) -> None:
    plain = getattr(owner, name)

    def armed(self: Any, *given: Any) -> Any:
        with striker.around(side, self, named(*given)):
            return plain(self, *given)

    setattr(owner, name, armed)


def writing(striker: Striker, name: str) -> None:
    plain = getattr(Changelog, name)

    def armed(self: Any, *given: Any) -> Any:
        with striker.writing(name):
            return plain(self, *given)

    setattr(Changelog, name, armed)


if __name__ == "__main__":
    config = pickle.loads(bytes.fromhex(sys.argv[1]))
    arm(Striker(config.checkpoint, Path(sys.argv[2])))
    Host(config, lambda: time.time_ns() // 1_000_000).run()

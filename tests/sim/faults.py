"""Faults by chance: at any time, when something is written, or right after an effect of a migration or a batch's opening."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow.flight as flight

from tests.sim.flock import Flock
from tests.sim.kernel import Kernel, Process
from tests.sim.network import Network
from tests.sim.query import Queries

KINDS = (
    "kill",
    "kill",
    "kill",
    "kill at write",
    "kill two",
    "snap",
    "snap",
    "part",
    "stop",
    "task",
    "speculation",
    "restart",
)
EFFECTS = tuple(
    "Offer Lend Copy Cut Ship Release TellReleased Resume Forget Expect Stage Persist AnswerPrepared AnswerDeclined"
    " AnswerMissing Serve Discard AskOutcome".split()
)
AT_WRITE = 0.1  # of the writes that come while a process is to be killed at one


class Faults:
    def __init__(self, kernel: Kernel, network: Network, flock: Flock, queries: Queries) -> None:
        self._kernel, self._network, self._flock, self._queries = kernel, network, flock, queries
        self.happened: Counter[str] = Counter()
        self._to_kill_at_write = 0
        self._at_effect: dict[tuple[str, int], str] = {}
        self._effects: Counter[str] = Counter()
        kernel.at_write = self._at_write

    def plan(self, count: int, within_s: float) -> None:
        dice = self._kernel.dice
        for _ in range(count):
            kind = dice.choice(KINDS)
            if dice.random() < 0.4:
                self._kernel.after(0.2 + dice.random() * within_s, lambda kind=kind: self.strike(kind))
            elif dice.random() < 0.35:
                self._at_effect["Open", dice.randint(1, 30)] = dice.choice((kind, "kill", "stop"))
            else:
                self._at_effect[dice.choice(EFFECTS), dice.randint(1, 4)] = kind

    def effect(self, host: str, migration: str, effect: Any) -> None:
        """One is about to be carried out."""
        name = type(effect).__name__
        self._kernel.tell(host, migration, effect)
        self._effects[name] += 1
        kind = self._at_effect.pop((name, self._effects[name]), None)
        if kind is not None:
            dice = self._kernel.dice
            victim = host if dice.random() < 0.6 else None
            self._kernel.after(dice.choice((0.0, 0.0, 0.0003, 0.001, 0.01)), lambda: self.strike(kind, victim))

    def strike(self, kind: str, victim: str | None = None) -> None:
        """`victim`: the host that it hits, if it is one that hits a host."""
        self._kernel.tell("fault", kind, victim or "")
        if kind == "kill" and victim in self._flock.up():
            self._flock.hosts[victim][0].kill()
            self.happened[kind] += 1
        elif kind == "stop" and victim in self._flock.up():
            self._stop_one(self._flock.hosts[victim][0])
            self.happened[kind] += 1
        elif getattr(self, "_" + kind.replace(" ", "_"))():
            self.happened[kind] += 1

    def _hosts(self, count: int) -> list[Process]:
        up = self._flock.up()
        return [self._flock.hosts[name][0] for name in self._kernel.dice.sample(up, min(count, len(up)))]

    def _kill(self, count: int = 1) -> bool:
        processes = self._hosts(count)
        for process in processes:
            process.kill()
        return bool(processes)

    def _kill_two(self) -> bool:
        return self._kill(2)

    def _kill_at_write(self) -> bool:
        self._to_kill_at_write += 1
        return True

    def _at_write(self, process: Process) -> int | None:
        """How much of it is written before the process ends; None if it goes on."""
        dice = self._kernel.dice
        if self._to_kill_at_write and process.name in self._flock.hosts and dice.random() < AT_WRITE:
            self._to_kill_at_write -= 1
            self._kernel.tell("fault", "kill at write of", process.name)
            return dice.randrange(1 << 20)
        return None

    def _snap(self) -> bool:
        """A connection breaks, between hosts rather than elsewhere."""
        streams = list(self._network.streams)
        between = [stream for stream in streams if stream.client.node in self._flock.hosts]
        chosen = between if between and self._kernel.dice.random() < 0.6 else streams
        if chosen:
            self._kernel.dice.choice(chosen).snap(flight.FlightUnavailableError("the connection was lost"))
        return bool(chosen)

    def _part(self) -> bool:
        a, b = self._kernel.dice.sample((*self._flock.plan.hosts, "query", "driver"), 2)
        self._network.part(a, b, self._kernel.dice.random() * 3)
        return True

    def _stop(self) -> bool:
        """As by SIGSTOP; it goes on later, perhaps when others have taken over."""
        for process in self._hosts(1):
            self._stop_one(process)
            return True
        return False

    def _stop_one(self, process: Process) -> None:
        process.stop()
        self._kernel.after(self._kernel.dice.random() * 4, process.resume)

    def _task(self) -> bool:
        return self._queries.kill_task()

    def _speculation(self) -> bool:
        return self._queries.speculate()

    def _restart(self) -> bool:
        """The application dies, and is started again."""
        return self._queries.crash()

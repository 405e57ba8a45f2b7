"""The simulated world: a clock, a queue of events, a network and the seed's dice. It knows no protocol.

Everything that happens is one event of the queue, and everything that chance decides comes from one seed, so a run is the
same each time. A pipe is a connection: in order both ways, until it breaks and takes with it what is in flight.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

STORY_MAX = 400
CONTROL = frozenset(("released", "served", "prepared", "missing"))  # told again by hosts too, so they may come twice


class Breach(AssertionError):
    """An invariant of DESIGN 3 does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


class End(Protocol):
    """One end of a pipe."""

    alive: bool

    def heard(self, pipe: Pipe, message: tuple[Any, ...]) -> None: ...

    def lost(self, pipe: Pipe) -> None: ...


def _nothing(effect: str, host: Any) -> None:
    """Unless faults are to follow effects."""


class World:
    def __init__(self, seed: int, holes: frozenset[str] = frozenset()) -> None:
        self.dice = Random(seed)
        self.holes = holes
        self.now = 0
        self.events = 0
        self.hosts: dict[str, Any] = {}  # name -> the host that runs, or None while it is down
        self.pipes: dict[Pipe, None] = {}
        self.cut_off: set[frozenset[str]] = set()  # pairs of nodes that do not hear each other
        self.rescued: set[str] = set()  # lost hosts whose keys are being given new owners, or have been
        self.wills: dict[str, tuple[str, Any]] = {}  # by lost host: the name of its will, and who gets what
        self.faults: Counter[str] = Counter()
        self.migration_messages = 0
        self.story: deque[tuple[Any, ...]] = deque(maxlen=STORY_MAX)
        self.repeat = 0.0  # how often a message that may come twice does
        self.on_effect: Callable[[str, Any], None] = _nothing  # called with every effect of a migration
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def tell(self, who: str, *what: Any) -> None:
        self.story.append((self.now, who, *what))

    def delay(self) -> int:
        """Mostly short, now and then long."""
        chance = self.dice.random()
        return 1 + int(chance * 4) if chance < 0.93 else 5 + int(self.dice.random() * 30)

    def after(self, delay: int, do: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, do, *args)

    def at(self, time: int, do: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (time, self._count, do, args))

    def step(self) -> bool:
        """Let the next event happen; False if there is none."""
        if not self._queue:
            return False
        self.now, _, do, args = heapq.heappop(self._queue)
        self.events += 1
        do(*args)
        return True

    # -- network -----------------------------------------------------------------------------------------------------

    def connect(self, end: End, node: str, host: str, hello: tuple[Any, ...]) -> Pipe:
        pipe = Pipe(self, end, (node, host))
        self.pipes[pipe] = None
        pipe.send(end, hello)
        return pipe

    def reach(self, a: str, b: str) -> bool:
        return not self.cut_off or frozenset((a, b)) not in self.cut_off

    def part(self, a: str, b: str, duration: int) -> None:
        pair = frozenset((a, b))
        self.cut_off.add(pair)
        for pipe in [pipe for pipe in self.pipes if frozenset(pipe.nodes) == pair]:
            pipe.snap()
        self.after(duration, self.cut_off.discard, pair)

    def snap_all(self, node: str) -> None:
        for pipe in [pipe for pipe in self.pipes if node in pipe.nodes]:
            pipe.snap()

    def ask(self, asker: Any, node: str, host: str, question: tuple[Any, ...], then: Callable[[Any], None]) -> None:
        """Ask a host, whichever generation of it is up, until it answers or the asker is gone."""
        self.after(self.delay(), self._asked, asker, node, host, question, then)

    def _asked(self, asker: Any, node: str, host: str, question: tuple[Any, ...], then: Callable[[Any], None]) -> None:
        if not asker.alive:
            return
        if host in self.wills and question[0] == "outcome":
            word = "released" if question[1] == self.wills[host][0] else "kept"
            self.after(self.delay(), self._answered, asker, then, word)
            return
        one = self.hosts.get(host)
        if one is None or not self.reach(node, host):
            self.after(4 + self.delay(), self._asked, asker, node, host, question, then)
            return
        answer = one.answer(question)
        self.after(self.delay(), self._answered, asker, then, answer)

    def _answered(self, asker: Any, then: Callable[[Any], None], answer: Any) -> None:
        if asker.alive:
            then(answer)


class Pipe:
    __slots__ = ("broken", "ends", "last", "nodes", "world")

    def __init__(self, world: World, client: End, nodes: tuple[str, str]) -> None:
        self.world = world
        self.ends: list[End | None] = [client, None]
        self.nodes = nodes
        self.broken = False
        self.last = [0, 0]

    def send(self, sender: End, message: tuple[Any, ...]) -> None:
        if self.broken:
            return
        side = 0 if sender is self.ends[0] else 1
        self._schedule(side, message)
        world = self.world
        if world.repeat and message[0] in CONTROL and world.dice.random() < world.repeat:
            world.faults["repetition"] += 1
            self._schedule(side, message)

    def _schedule(self, side: int, message: tuple[Any, ...]) -> None:
        at = max(self.last[side], self.world.now + self.world.delay())
        self.last[side] = at
        self.world.at(at, self._deliver, side, message)

    def _deliver(self, side: int, message: tuple[Any, ...]) -> None:
        if self.broken:
            return
        if not self.world.reach(*self.nodes):
            self.snap()
            return
        end = self.ends[1 - side]
        if end is None:
            host = self.world.hosts.get(self.nodes[1])
            if host is None:
                self.snap()
            else:
                host.accept(self, message)
        elif end.alive:
            end.heard(self, message)
        else:
            self.snap()

    def snap(self) -> None:
        """Break; each end that still lives hears of it in its own time."""
        if self.broken:
            return
        self.broken = True
        self.world.pipes.pop(self, None)
        for end in self.ends:
            if end is not None and end.alive:
                self.world.after(self.world.delay(), self._tell_lost, end)

    def _tell_lost(self, end: End) -> None:
        if end.alive:
            end.lost(self)

    def close(self) -> None:
        """Break once all that is in flight has come."""
        self.world.at(max(*self.last, self.world.now) + 1, self.snap)

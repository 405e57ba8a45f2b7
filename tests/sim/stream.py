"""What one router's task sends to a simulated host: chunks in order, and what was refused of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from godwit.model.refusals import Refusals
from tests.sim.world import Pipe

if TYPE_CHECKING:
    from tests.sim.host import Host

Hint = tuple[str, str, int]  # "key" or "group", owner, epoch


class Chunk:
    __slots__ = ("again", "left", "outputs", "refused", "seen")

    def __init__(self, seen: int, again: bool, rows: list[tuple[int, int]]) -> None:
        self.seen = seen
        self.again = again
        self.left = rows  # (number, key) not decided yet
        self.outputs: dict[int, int] = {}
        self.refused: list[tuple[int, int, Hint]] = []


class Stream:
    """What one router's task sends to this host."""

    def __init__(self, host: Host, pipe: Pipe, batch: int, run: int, lane: int) -> None:
        self.host = host
        self.pipe = pipe
        self.batch, self.run, self.lane = batch, run, lane
        self.opened = False
        self.chunks: deque[Chunk] = deque()
        self.refusals = Refusals()
        self.answers = 0

    @property
    def alive(self) -> bool:
        return self.host.alive

    def heard(self, pipe: Pipe, message: tuple[Any, ...]) -> None:
        if message[0] == "rows":
            self.chunks.append(Chunk(*message[1:]))
            self.host.pump(self)
        elif message[0] == "finish":
            self.host.durably(lambda: pipe.send(self, ("finished", self.host.roster)))

    def lost(self, pipe: Pipe) -> None:
        self.host.streams.pop(pipe, None)

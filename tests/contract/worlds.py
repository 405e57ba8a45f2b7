"""The worlds in which the same contract must hold: this machine, and the simulator's.

`in_both_worlds` makes two tests of one body: it runs in a thread of this process, over Flight on loopback; and in a simulated
process, over the simulated network, once for each of some seeds, because the seed decides which thread runs next. The body uses
`ports` and `line` alone, as the product does.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Protocol

import pytest

from godwit import ports
from godwit.transport import line
from tests.sim.kernel import Kernel, Process
from tests.sim.network import BIND, Network

SEEDS = 25
TURNS_MAX = 20_000
LIFE_S = 300.0  # of the simulated clock


class World(Protocol):
    def run(self, body: Callable[[], None]) -> None: ...

    def victim(self, listen: Callable[[], Any]) -> Victim:
        """Another process, in which `listen`, a function of a module, has made a service."""
        ...


class Victim(Protocol):
    address: str

    def kill(self) -> None: ...


# -- this machine ----------------------------------------------------------------------------------------------------


class Real:
    def run(self, body: Callable[[], None]) -> None:
        body()

    def victim(self, listen: Callable[[], Any]) -> Victim:
        return RealVictim(listen)


class RealVictim:
    def __init__(self, listen: Callable[[], Any]) -> None:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_listen_for_ever, args=(listen, theirs), daemon=True)
        self._process.start()
        self.address = f"{BIND}:{ours.recv()}"

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _listen_for_ever(listen: Callable[[], Any], pipe: Any) -> None:
    service = listen()
    pipe.send(service.ports)
    ports.event().wait()


# -- the simulator ---------------------------------------------------------------------------------------------------


class Simulated:
    def __init__(self, seed: int) -> None:
        self._kernel = Kernel(Random(seed))
        self._network = Network(self._kernel)

    def run(self, body: Callable[[], None]) -> None:
        with ports.use(self._kernel), line.use(self._network):
            process = self._kernel.process("body", "here", body)
            try:
                ended = self._kernel.run(lambda: not process.alive, TURNS_MAX, self._kernel.time_s + LIFE_S)
            finally:
                self._kernel.end()
        if process.error is not None:
            raise process.error
        assert ended, "it waits for ever"

    def victim(self, listen: Callable[[], Any]) -> Victim:
        return SimVictim(self._kernel, listen)


class SimVictim:
    def __init__(self, kernel: Kernel, listen: Callable[[], Any]) -> None:
        listening = ports.queue()

        def main() -> None:
            listening.put(listen().ports)
            ports.event().wait()

        self._process: Process = kernel.process("victim", "there", main)
        self.address = f"{BIND}:{listening.get()}"

    def kill(self) -> None:
        self._process.kill()


# -- both ------------------------------------------------------------------------------------------------------------

_worlds: list[World] = []


def here() -> World:
    """The world in which the test runs."""
    return _worlds[-1]


@contextmanager
def _entered(world: World) -> Iterator[World]:
    _worlds.append(world)
    try:
        yield world
    finally:
        _worlds.pop()


def in_both_worlds(body: Callable[[], None]) -> Callable[[str], None]:
    @pytest.mark.parametrize("world", ["machine", "simulator"])
    def test(world: str) -> None:
        made = [Real()] if world == "machine" else map(Simulated, range(SEEDS))
        for each in made:
            with _entered(each):
                each.run(body)

    test.__name__, test.__doc__ = body.__name__, body.__doc__
    return test

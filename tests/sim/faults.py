"""Faults: what each kind does, and which come by chance: at any time, at a write, or at an effect of a migration or a batch.

A fault is a kind and what it hits, so that it can be written down and done again (`do`). Chance says both (`strike`).
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow.flight as flight

from godwit.errors import StateTooLarge
from godwit.runtime.backup.records import Records, mirror_directory
from godwit.runtime.liveness.leases import host_directory
from godwit.state.mirroring import has_log
from tests.sim.flock import Flock
from tests.sim.kernel import Kernel, Process
from tests.sim.network import Network, Stream
from tests.sim.query import Queries

KINDS = (
    "kill",
    "kill",
    "kill",
    "kill at write",
    "kill two",
    "power cut",
    "snap",
    "snap",
    "part",
    "stop",
    "full disk",
    "lost disk",
    "task",
    "speculation",
    "restart",
)
EFFECTS = tuple(
    "Offer Lend Copy Cut Ship Release TellReleased Resume Forget Expect Stage Persist AnswerPrepared AnswerDeclined"
    " AnswerMissing Serve Discard AskOutcome".split()
)
WRITES_MAX = 20  # within so many a process is killed that is to be killed at one, and a disk is full

Fault = Sequence[Any]  # its kind, and what it hits
Strike = Callable[[], None] | None  # none if there is nothing to hit


class Faults:
    """`note`: is given each fault that happens."""

    def __init__(
        self, kernel: Kernel, network: Network, flock: Flock, queries: Queries, note: Callable[[Fault], None]
    ) -> None:
        self._kernel, self._network, self._flock, self._queries, self._note = kernel, network, flock, queries, note
        self.happened: Counter[str] = Counter()
        self._writes: dict[
            Process, tuple[int, int | None]
        ] = {}  # how many go well, and how much is written of the next
        self._full: set[Process] = set()  # whose next spill fails
        self._full_disks: dict[
            str, tuple[int, float]
        ] = {}  # by host: how many writes go well, and until when none does
        self._at_effect: dict[tuple[str, int], str] = {}
        self._effects: Counter[str] = Counter()
        kernel.at_write = self._at_write

    # -- by chance ---------------------------------------------------------------------------------------------------

    def plan(self, count: int, within_s: float) -> None:
        dice = self._kernel.dice
        for _ in range(count):
            kind = dice.choice(KINDS)
            if dice.random() < 0.4:
                self._kernel.after(0.2 + dice.random() * within_s, lambda kind=kind: self.strike(kind))
            elif dice.random() < 0.35:
                self._at_effect[dice.choice(("Open", "Fire")), dice.randint(1, 30)] = dice.choice(
                    (kind, "kill", "stop")
                )
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
        for fault in self._draw(kind, victim):
            self._note(fault)
            self.do(fault, kind)

    def _draw(self, kind: str, victim: str | None) -> Sequence[Fault]:
        dice, up = self._kernel.dice, self._flock.up()
        one = [victim] if victim in up else dice.sample(up, min(1, len(up)))
        match kind:
            case "kill" | "power cut":
                return [(kind, host) for host in one]
            case "kill two":
                return [("kill", host) for host in dice.sample(up, min(2, len(up)))]
            case "kill at write":
                return [(kind, host, dice.randrange(WRITES_MAX), dice.randrange(1 << 20)) for host in one]
            case "stop":
                return [(kind, host, dice.random() * 4) for host in one]
            case "full disk":
                return [(kind, host, dice.randrange(WRITES_MAX), dice.random()) for host in one]
            case "lost disk":
                backed_up = [host for host in self._flock.left() if self._has_backup(host)]
                return [(kind, host) for host in dice.sample(backed_up, min(1, len(backed_up)))]
            case "snap":
                return self._draw_stream()
            case "part":
                nodes = dice.sample((*self._flock.plan.hosts, "query", "driver"), 2)
                return [(kind, *nodes, dice.random() * 3)]
            case _:
                return [(kind, *what) for what in self._queries.draw(kind)]

    def _draw_stream(self) -> Sequence[Fault]:
        """Between hosts rather than elsewhere."""
        streams, dice = list(self._network.streams), self._kernel.dice
        between = [stream for stream in streams if stream.client.node in self._flock.hosts]
        chosen = between if between and dice.random() < 0.6 else streams
        if not chosen:
            return []
        ends = _ends(dice.choice(chosen))
        return [("snap", *ends, dice.randrange(len(self._between(*ends))))]

    # -- what they do ------------------------------------------------------------------------------------------------

    def do(self, fault: Fault, called: str = "") -> None:
        kind, *what = fault
        self._kernel.tell("fault", *fault)
        strike = getattr(self, "_" + kind.replace(" ", "_"))(*what)
        if strike is not None:
            self.happened[called or kind] += 1  # before it: a thread that ends its own process goes no further
            strike()

    def _process(self, host: str) -> Process | None:
        process = self._flock.hosts[host][0]
        return process if process.alive else None

    def _kill(self, host: str) -> Strike:
        process = self._process(host)
        return None if process is None else process.kill

    def _power_cut(self, host: str) -> Strike:
        """Where nothing is synced, no machine may be lost: there it is a kill."""
        process = self._process(host)
        if process is None or self._flock.plan.durability == "process":
            return self._kill(host)
        return lambda: self._kernel.cut_power(process)

    def _kill_at_write(self, host: str, after: int, size: int) -> Strike:
        process = self._process(host)
        return None if process is None else lambda: self._writes.update({process: (after, size)})

    def _at_write(self, process: Process) -> int | None:
        """How much of it is written before the process ends; None if it goes on."""
        if process.node in self._full_disks:
            self._write_to_full_disk(process.node)
        if process not in self._writes:
            return None
        left, size = self._writes[process]
        self._writes[process] = (left - 1, size)
        return None if left else size

    def _full_disk(self, host: str, after: int, duration_s: float) -> Strike:
        """Some writes go well, and then none for a while, also those of the next generation."""
        return lambda: self._full_disks.update({host: (after, duration_s)})

    def _write_to_full_disk(self, host: str) -> None:
        left, duration_s = self._full_disks[host]
        if left == 0:  # from now on
            self._kernel.tell(host, "has no space left")
            self._kernel.after(duration_s, lambda: self._full_disks.pop(host, None))
        self._full_disks[host] = (left - 1, duration_s)
        if left <= 0:
            raise OSError(errno.ENOSPC, "no space left on device")

    def _has_backup(self, host: str) -> bool:
        """Whether another host has all that this one has answered: only then may a disk be lost."""
        checkpoint = str(self._flock.checkpoint)
        newest = Records(checkpoint, host).newest()
        if newest is None or newest.state != "kept" or newest.peer is None:
            return False
        return has_log(mirror_directory(checkpoint, newest.peer, host))

    def _lost_disk(self, host: str) -> Strike:
        """The machine is gone, and its disk with it: with the host's changelog, and the backups that it has of others."""
        if not self._has_backup(host):
            return None

        def lose() -> None:
            self._kernel.lose_files(host_directory(str(self._flock.checkpoint), host))
            for process in self._kernel.processes:
                if process.node == host:
                    process.kill()

        return lose

    def _full_scratch(self, host: str) -> Strike:
        """There is no room for one entry of a ledger that goes to disk; the changelog is elsewhere."""
        process = self._process(host)
        return None if process is None else lambda: self._full.add(process)

    def spill(self) -> None:
        process = self._kernel.current().process
        if process in self._full:
            self._full.discard(process)
            raise StateTooLarge("no space left on device", todo="Free space there", host=process.name)

    def _between(self, client: str, server: str, migration: str) -> list[Stream]:
        return [stream for stream in self._network.streams if _ends(stream) == (client, server, migration)]

    def _snap(self, client: str, server: str, migration: str, at: int) -> Strike:
        streams = self._between(client, server, migration)
        lost = flight.FlightUnavailableError("the connection was lost")
        return (lambda: streams[at % len(streams)].snap(lost)) if streams else None

    def _part(self, a: str, b: str, duration_s: float) -> Strike:
        return lambda: self._network.part(a, b, duration_s)

    def _stop(self, host: str, duration_s: float) -> Strike:
        """As by SIGSTOP; it goes on later, perhaps when others have taken over."""
        process = self._process(host)
        if process is None:
            return None

        def stop() -> None:
            process.stop()
            self._kernel.after(duration_s, process.resume)

        return stop

    def _task(self, query: str, lane: int) -> Strike:
        return self._queries.named(query).killing(lane)

    def _reorder(self, query: str, lane: int) -> Strike:
        return self._queries.named(query).reordering(lane)

    def _speculation(self, query: str, lane: int) -> Strike:
        return self._queries.named(query).speculation(lane)

    def _restart(self, query: str) -> Strike:
        """The application dies, and is started again."""
        found = self._queries.named(query)
        return None if found.over else found.crash


def _ends(stream: Stream) -> tuple[str, str, str]:
    """Client and server, and the migration that the stream is of, if any."""
    return stream.client.node, stream.server.node, stream.header.get("migration", "")

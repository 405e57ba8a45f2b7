"""One generation of a simulated host: rows in, outputs or refusals out, as the real host does it, around the real Ownership.

It stands in for the host's loops and the processor (a count per key), nothing else: what may be applied, refused or held is
asked of `Ownership` and `Refusals`, and migrations are run by the real machines in `mover` and `receiver`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from godwit.model.ownership import HELD, Ownership, Stand
from godwit.model.units import Unit, Units
from tests.sim.disk import Disk, Row
from tests.sim.mover import Mover
from tests.sim.receiver import Receiver
from tests.sim.stream import Chunk, Hint, Stream
from tests.sim.world import Pipe, World

if TYPE_CHECKING:
    from tests.sim.checks import Checks


class Host:
    def __init__(self, world: World, checks: Checks, name: str, disk: Disk, roster: tuple[str, ...]) -> None:
        self.world, self.checks, self.name, self.disk, self.roster = world, checks, name, disk, roster
        self.alive = True
        image = disk.image
        self.state = dict(image.state)
        self.ledger = dict(image.ledger)
        self.batch = image.batch
        self.run = 0
        self.own = Ownership.from_dict(name, image.own)
        self.streams: dict[Pipe, Stream] = {}
        self.movers: dict[str, Mover] = {}
        self.receivers: dict[str, Receiver] = {}
        self._written: list[Callable[[], None]] = []  # to be done after the next flush
        self._flushing = self._stirring = False
        self._version = self.own.version
        self.advance_to = -1  # a later batch that a peer has proved to have begun
        world.hosts[name] = self
        self._recover()

    def _recover(self) -> None:
        stale = [key for key in self.state if not self._keeps(key)]
        self._drop(stale)
        out: dict[str, dict[int, Units]] = {}
        for step, outgoing in self.own.outgoing.items():
            out.setdefault(step.rpartition("/")[0], {})[int(step.rpartition("/")[2])] = outgoing.units
        for migration, released in out.items():
            self.movers[migration] = Mover.resumed(self, migration, released)
        come: dict[str, dict[int, Units]] = {}
        for step, incoming in self.own.incoming.items():
            come.setdefault(step.rpartition("/")[0], {})[int(step.rpartition("/")[2])] = incoming.units
        for migration, prepared in come.items():
            origin = self.own.incoming[f"{migration}/{next(iter(prepared))}"].origin
            self.receivers[migration] = Receiver(self, migration, origin, prepared)

    # -- disk --------------------------------------------------------------------------------------------------------

    def write(self, *record: Any) -> None:
        self.disk.pending.append(record)

    def write_own(self) -> None:
        self.write("own", self.own.to_dict())

    def durably(self, then: Callable[[], None]) -> None:
        """Do it when all that has been written so far is durable."""
        self._written.append(then)
        if not self._flushing:
            self._flushing = True
            self.world.after(1 if self.world.dice.random() < 0.7 else self.world.delay(), self._flush)

    def _flush(self) -> None:
        if not self.alive:
            return
        self._flushing = False
        then, self._written = self._written, []
        if self.disk.flush():
            self.checks.owners()
        for do in then:
            if self.alive:
                do()

    def crash(self) -> None:
        self.alive = False
        self.world.hosts[self.name] = None
        self.world.faults["torn write"] += bool(self.disk.crash(self.world.dice))
        self.world.snap_all(self.name)

    # -- rows --------------------------------------------------------------------------------------------------------

    def accept(self, pipe: Pipe, hello: tuple[Any, ...]) -> None:
        if hello[0] == "open":
            stream = Stream(self, pipe, *hello[1:])
            pipe.ends[1] = stream
            self.streams[pipe] = stream
            self._open(stream)
        else:
            self._accept_migration(pipe, *hello[1:])

    def _open(self, stream: Stream) -> None:
        """A new batch waits while something is between two owners; that of an operator without timers need not."""
        if (stream.batch, stream.run) < (self.batch, self.run if stream.batch == self.batch else 0):
            self._fence(stream)
        elif stream.batch == self.batch or not self.own.busy() or "no timers" in self.world.holes:
            if stream.batch > self.batch:
                self.begin(stream.batch)
            self.run = stream.run
            stream.opened = True
            stream.pipe.send(stream, ("opened",))
            self.pump(stream)

    def _fence(self, stream: Stream) -> None:
        self.streams.pop(stream.pipe, None)
        stream.pipe.send(stream, ("stale",))

    def begin(self, batch: int) -> None:
        """The batch before it is committed: what is kept for answering it again can go."""
        self.world.tell(self.name, "begins batch", batch)
        self.checks.begun(batch)
        self.batch, self.run = batch, 0
        self.ledger = {row: entry for row, entry in self.ledger.items() if row[0] >= batch}
        self.write("batch", batch)
        for stream in [stream for stream in self.streams.values() if stream.batch < batch]:
            self._fence(stream)
        for mover in list(self.movers.values()):
            mover.batch_began()
        self.stir()

    def advance(self, batch: int) -> None:
        """A peer is in this batch already, which proves that it has begun: no need to wait for a router to say so."""
        if batch > self.batch:
            self.advance_to = max(batch, self.advance_to)
            self.stir()

    def pump(self, stream: Stream) -> None:
        while stream.opened and stream.chunks and stream.pipe in self.streams:
            chunk = stream.chunks[0]
            self._decide(stream, chunk)
            if chunk.left:
                return
            stream.chunks.popleft()
            stream.answers += 1
            if "new route at once" not in self.world.holes:
                stream.refusals.add(stream.answers, {key for _, key, _ in chunk.refused})
            self._answer(stream, chunk)

    def _answer(self, stream: Stream, chunk: Chunk) -> None:
        def send() -> None:
            self.checks.answered(stream.batch, stream.lane, chunk.outputs)
            stream.pipe.send(stream, ("outputs", chunk.outputs, chunk.refused))

        if "answer before durable" in self.world.holes:
            send()
        else:
            self.durably(send)

    def _decide(self, stream: Stream, chunk: Chunk) -> None:
        stream.refusals.dealt_with(chunk.seen)
        left = []
        of = self.own.of
        for number, key in chunk.left:
            share = of(key)
            if not chunk.again and key in stream.refusals:
                chunk.refused.append((number, key, self._hint(key)))
            elif share.stand is Stand.MINE:
                chunk.outputs[number] = self._apply((stream.batch, stream.lane, number), key)
            elif share.stand in HELD:
                left.append((number, key))
                if share.stand is Stand.EXPECTED:
                    self._want(key)
            else:
                chunk.refused.append((number, key, self._hint(key)))
                if share.stand is Stand.LENT:
                    self._note_waiting(key)
        chunk.left = left

    def _apply(self, row: Row, key: int) -> int:
        known = self.ledger.get(row)
        if known is not None:
            return known[1]
        before = self.state.get(key, ())
        self.checks.applied(self, row, key, before)
        after = (*before, row)
        self.state[key] = after
        self.ledger[row] = (key, len(after))
        self.write("row", key, after, row, len(after))
        for mover in self.movers.values():
            mover.applied(key, row)
        return len(after)

    def _hint(self, key: int) -> Hint:
        share = self.own.of(key)
        return ("key" if key in self.own.keys else "group", share.peer, share.epoch)

    def unit(self, key: int) -> Unit:
        return Unit("key", key) if key in self.own.keys else Unit("group", key % len(self.own.groups))

    def _want(self, key: int) -> None:
        for receiver in self.receivers.values():
            receiver.want(self.unit(key))

    def _note_waiting(self, key: int) -> None:
        for mover in self.movers.values():
            mover.note_waiting(self.unit(key))

    def stir(self) -> None:
        """What is owned has changed, or the batch: look at all that waits, as an event of its own."""
        if not self._stirring:
            self._stirring = True
            self.world.after(0, self._stirred)

    def _stirred(self) -> None:
        self._stirring = False
        if not self.alive:
            return
        if self.advance_to > self.batch and not self.own.busy():
            self.begin(self.advance_to)
        for stream in list(self.streams.values()):
            if not stream.opened:
                self._open(stream)
            else:
                self.pump(stream)

    # -- migrations --------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """To be called after every change of what is owned."""
        if self.own.version != self._version:
            self._version = self.own.version
            self.checks.owners()
            self.stir()

    def keys_of(self, units: Units) -> list[int]:
        """The keys that go with these units from here, in hash order."""
        count, apart = len(self.own.groups), self.own.keys
        return [
            key for key in self.checks.keys if key in units.keys or (key % count in units.groups and key not in apart)
        ]

    def _keeps(self, key: int) -> bool:
        """Whether a copy of the key may be needed: it is owned, prepared, or not confirmed by who owns it now."""
        if self.own.of(key).stand is not Stand.AWAY:
            return True
        group = key % len(self.own.groups)
        return any(
            key in out.units.keys or (group in out.units.groups and key not in self.own.keys)
            for out in self.own.outgoing.values()
        )

    def drop(self, units: Units) -> None:
        count = len(self.own.groups)
        self._drop(
            key
            for key in list(self.state)
            if (key in units.keys or key % count in units.groups) and not self._keeps(key)
        )

    def _drop(self, keys: Iterable[int]) -> None:
        gone = list(keys)
        for key in gone:
            self.state.pop(key, None)
        self.ledger = {row: entry for row, entry in self.ledger.items() if entry[0] not in gone}
        if gone:
            self.write("drop", gone)

    def occupied(self, units: Units, but: str = "") -> bool:
        """Whether another hand-over has to do with these units: a unit takes part in one at a time, on either side."""
        count = len(self.own.groups)
        under_way = [mover.units for mover in self.movers.values() if mover.migration != but]
        under_way += [receiver.unresolved() for receiver in self.receivers.values() if receiver.migration != but]
        under_way += [out.units for step, out in self.own.outgoing.items() if step.rpartition("/")[0] != but]
        return any(units.overlaps(other, count) for other in under_way)

    def _accept_migration(self, pipe: Pipe, migration: str, origin: str, units: Units, resumed: bool) -> None:
        self.world.migration_messages += 1
        receiver = self.receivers.get(migration)
        busy = not resumed and receiver is None and self.occupied(units, migration)
        if busy and "two hand-overs at once" not in self.world.holes:
            pipe.ends[1] = Receiver(self, migration, origin, {})
            pipe.send(pipe.ends[1], ("busy",))
            return
        if receiver is None:
            receiver = self.receivers[migration] = Receiver(self, migration, origin, {})
        receiver.attach(pipe, units)

    def answer(self, question: tuple[Any, ...]) -> Any:
        match question:
            case ("migrate", migration, target, protocol, steps, side_by_side):
                return self._migrate(migration, target, protocol, steps, side_by_side)
            case ("abort", migration) if migration in self.movers:
                self.movers[migration].abort()
            case ("hand over", migration) if migration in self.movers:
                self.movers[migration].hand_over()
            case ("outcome", migration, number):
                return self._outcome(migration, number)
        return None

    def _migrate(self, migration: str, target: str, protocol: str, steps: list[Units], side_by_side: int | None) -> str:
        units = Units()
        for step in steps:
            units |= step
        if migration in self.movers:
            return "begun"
        mine = all(self.own.share(unit).stand is Stand.MINE for unit in units)
        if not mine or self.occupied(units) or target == self.name:
            return "refused"
        self.movers[migration] = Mover(self, migration, target, protocol, steps, side_by_side)
        return "begun"

    def _outcome(self, migration: str, number: int) -> str:
        """By the step's name, never by what is owned now: the same unit may have gone the same way before."""
        mover = self.movers.get(migration)
        decided = mover.outcome(number) if mover is not None else None
        if decided is not None:
            return decided
        return "released" if f"{migration}/{number}" in self.own.outgoing else "kept"

"""The checkers: I1 to I7 of DESIGN 3, looked at with every step that could break them. They see all hosts at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from godwit.model.ownership import Ownership, Stand
from tests.sim.disk import Disk, Row
from tests.sim.world import Breach, World

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.query import Query
    from tests.sim.router import Task


class Checks:
    def __init__(self, world: World, keys: list[int], batches: list[list[list[int]]]) -> None:
        self.world = world
        self.keys = sorted(keys)
        self.disks: dict[str, Disk] = {}
        self.protocols: dict[str, str] = {}  # migration -> protocol, for all that have begun
        self.outcomes: dict[str, tuple[int, int, str]] = {}
        self._batches = batches
        self._answers: dict[Row, int] = {}  # what routers were told
        self._answered: Counter[int] = Counter()  # key -> how many of its rows were answered
        self._emitted: Counter[int] = Counter()  # key -> outputs committed
        self.committed_batches = 0
        self._durable: dict[str, tuple[dict[str, Any], Ownership]] = {}  # as written, as read
        self._owned: dict[int, tuple[Ownership, int, frozenset[int]]] = {}

    # -- with every row ----------------------------------------------------------------------------------------------

    def applied(self, host: Host, row: Row, key: int, before: tuple[Row, ...]) -> None:
        for other in self.world.hosts.values():
            if other is not None and other is not host and key in self._mine(other.own):
                raise Breach("I1", f"{host.name} and {other.name} both apply key {key}")
        if row in before:
            raise Breach("I2", f"{host.name} applies row {row} of key {key} twice: {before}")
        later = [done for done in before if done[0] > row[0] or (done[:2] == row[:2] and done[2] > row[2])]
        if later:
            raise Breach("I3", f"{host.name} applies row {row} of key {key} after {later[0]}")
        if len(before) < self._answered[key]:
            raise Breach("I2", f"{host.name} has {len(before)} rows of key {key}; {self._answered[key]} were answered")

    def answered(self, batch: int, lane: int, outputs: dict[int, int]) -> None:
        for number, count in outputs.items():
            row = (batch, lane, number)
            before = self._answers.setdefault(row, count)
            if before != count:
                raise Breach("I2", f"row {row} was answered {before}, now {count}")
            key = self._batches[batch][lane][number]
            self._answered[key] = max(self._answered[key], count)

    def begun(self, batch: int) -> None:
        if batch > self.committed_batches:
            raise Breach("I5", f"batch {batch} begins, but only {self.committed_batches} are committed")

    def fenced(self, task: Task, query: Query) -> None:
        if (task.run, task.batch) == (query.run, query.batch) and task.batch >= self.committed_batches:
            raise Breach("I6", f"{task.name} was fenced, though it is the newest run of the batch in progress")

    # -- with every change of what is owned --------------------------------------------------------------------------

    def owners(self) -> None:
        """At most one host owns a key, or would after a restart; and one does, or has let go and is telling who does."""
        hosts = self.world.hosts
        by_host = {name: self._mine(self.durable(name)) for name in self.disks}
        for name, host in hosts.items():
            if host is not None:
                by_host[name] = by_host[name] | self._mine(host.own)
        for key in self.keys:
            who = [name for name, mine in by_host.items() if key in mine]
            if len(who) > 1:
                raise Breach("I1", f"key {key} is owned by {' and '.join(who)}")
            if not who and self._holder(key, {name: self.durable(name) for name in self.disks}) is None:
                raise Breach("I6", f"key {key} is owned by nobody")
            if who and hosts[who[0]] is not None:
                self._hints(key, hosts[who[0]])

    def _mine(self, own: Ownership) -> frozenset[int]:
        """The keys that are owned so; looked at again only when that has changed."""
        known = self._owned.get(id(own))
        if known is None or known[0] is not own or known[1] != own.version:
            mine = frozenset(key for key in self.keys if own.of(key).stand is Stand.MINE)
            known = self._owned[id(own)] = (own, own.version, mine)
        return known[2]

    def _hints(self, key: int, owner: Host) -> None:
        """A hint is from the past: its epoch is less than the owner's, or it names the owner. So following hints ends."""
        epoch = owner.own.of(key).epoch
        for host in self.world.hosts.values():
            if host is None or host is owner:
                continue
            hint = host.own.of(key)
            if hint.epoch > epoch or (hint.epoch == epoch and hint.peer != owner.name):
                raise Breach("I6", f"{host.name} says of key {key}: {hint}, but {owner.name} owns it in epoch {epoch}")

    def durable(self, name: str) -> Ownership:
        """What the host would own after a crash now."""
        own = self.disks[name].image.own
        known = self._durable.get(name)
        if known is None or known[0] is not own:
            known = self._durable[name] = (own, Ownership.from_dict(name, own))
        return known[1]

    def _holder(self, key: int, durable: dict[str, Ownership]) -> str | None:
        """Who has the key's state for sure: its owner, or while it changes hands, who has let go of it last."""
        group = key % len(next(iter(durable.values())).groups)
        best: tuple[int, str] | None = None
        for name, own in durable.items():
            share = own.of(key)
            if share.stand is Stand.MINE:
                return name
            let_go = any(
                key in out.units.keys or (group in out.units.groups and key not in own.keys)
                for out in own.outgoing.values()
            )
            if let_go and (best is None or share.epoch > best[0]):
                best = (share.epoch, name)
        return best[1] if best is not None else None

    # -- with every batch --------------------------------------------------------------------------------------------

    def committed(self, batch: int, lanes: dict[int, list[tuple[int, int, int]]]) -> None:
        counts: dict[int, list[int]] = {}
        for lane, outputs in lanes.items():
            if [number for number, _, _ in outputs] != list(range(len(self._batches[batch][lane]))):
                raise Breach("I2", f"batch {batch}, lane {lane}: outputs are not in row order, each once: {outputs}")
            last: dict[int, int] = {}
            for _, key, count in outputs:
                if count <= last.get(key, 0):
                    raise Breach("I3", f"batch {batch}, lane {lane}: key {key} emits {count} after {last[key]}")
                last[key] = count
                counts.setdefault(key, []).append(count)
        for key, found in counts.items():
            first = self._emitted[key] + 1
            if sorted(found) != list(range(first, first + len(found))):
                raise Breach("I2", f"batch {batch}: key {key} emits {sorted(found)}, {first} is next")
            self._emitted[key] += len(found)
        self.committed_batches = batch + 1
        self.kept()

    def kept(self) -> None:
        """Every committed row is in the durable state of who holds its key (I5)."""
        durable = {name: self.durable(name) for name in self.disks}
        for key in self.keys:
            holder = self._holder(key, durable)
            rows = self.disks[holder].image.state.get(key, ()) if holder is not None else ()
            found = sum(row[0] < self.committed_batches for row in rows)
            if found != self._emitted[key]:
                what = f"{found} of {self._emitted[key]} committed rows of key {key}"
                raise Breach("I5", f"{holder} has {what} in its durable state")

    # -- at the end --------------------------------------------------------------------------------------------------

    def ended(self, migration: str, done: int, dropped: int, reason: str) -> None:
        self.outcomes[migration] = (done, dropped, reason)

    def at_the_end(self, expected: dict[int, list[Row]]) -> None:
        self.owners()
        self.kept()
        for name, host in self.world.hosts.items():
            if host is None:
                raise Breach("I6", f"{name} is down")
            for stream in host.streams.values():
                if any(chunk.left for chunk in stream.chunks):
                    raise Breach("I6", f"{name} holds rows")
            for key in host.state:
                if host.own.of(key).stand is not Stand.MINE:
                    raise Breach("I6", f"{name} has a copy of key {key}, which it does not own")
        for key in self.keys:
            owner = next(host for host in self.world.hosts.values() if host.own.of(key).stand is Stand.MINE)
            rows = owner.state.get(key, ())
            if sorted(rows) != sorted(expected.get(key, [])):
                raise Breach("I4", f"key {key} ends with {rows}, not {expected.get(key)}")
        if not self.protocols and self.world.migration_messages:
            raise Breach("I7", f"{self.world.migration_messages} messages, though nothing moves")

    def unresolved(self) -> list[str]:
        """What is still under way."""
        found: list[Any] = []
        for name, host in self.world.hosts.items():
            if host is None:
                found.append(f"{name} is down")
                continue
            found += [f"{name} moves {migration}" for migration in host.movers]
            found += [f"{name} receives {migration}" for migration in host.receivers]
            found += [f"{name} has let go of {step}" for step in host.own.outgoing]
            found += [f"{name} has prepared {step}" for step in host.own.incoming]
        return found

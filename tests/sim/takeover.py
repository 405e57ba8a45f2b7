"""A lost host's keys get new owners, as the driver and the heirs do it, around the real Ownership and the real Target.

The log is the lost host's disk. Heirs prepare their shares like those of a migration; the will is one durable step, and
whatever happens before it starts the host again. Nobody but the heirs is needed after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.migration.events import AbortHeard
from godwit.migration.target import Phase
from godwit.model.ownership import Ownership
from godwit.model.units import Units
from tests.sim.receiver import Receiver

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.run import Run

LOOK_EVERY = 3


class Takeover:
    def __init__(self, run: Run, lost: str) -> None:
        self.run, self.world, self.lost = run, run.world, lost
        self.name = f"will-{lost}-{self.world.now}"
        self.disk = run.checks.disks[lost]
        self.own = Ownership.from_dict(lost, self.disk.image.own)
        self.shares = self._dealt()
        self._receivers: dict[str, Receiver] = {}
        self.world.rescued.add(lost)
        self.world.tell("driver", "deals out", lost, self.shares)
        run.checks.protocols[self.name] = "takeover"
        for heir in self.shares:
            self.world.after(self.world.delay(), self._begin, heir, self.world.hosts[heir])
        self.world.after(LOOK_EVERY, self._look)

    @classmethod
    def possible(cls, run: Run, lost: str) -> bool:
        """Nothing of it may be between two owners, and nobody may be about to move something to it."""
        own = Ownership.from_dict(lost, run.checks.disks[lost].image.own)
        up = [host for host in run.world.hosts.values() if host is not None]
        busy = any(mover.target == lost for host in up for mover in host.movers.values()) or any(
            receiver.origin == lost for host in up for receiver in host.receivers.values()
        )
        down = any(host is None for name, host in run.world.hosts.items() if name != lost)
        settled = not own.outgoing and not own.incoming and own.mine()
        return bool(up and settled and not busy and not down and not run.controller.asking)

    def _dealt(self) -> dict[str, Units]:
        heirs = [name for name, host in self.world.hosts.items() if host is not None and name != self.lost]
        shares: dict[str, Units] = {}
        for at, unit in enumerate(self.own.mine()):
            heir = heirs[at % len(heirs)]
            shares[heir] = shares.get(heir, Units()) | Units.of(unit)
        return shares

    # -- before the will ---------------------------------------------------------------------------------------------

    def _begin(self, heir: str, host: Host) -> None:
        if not host.alive or self.world.hosts[self.lost] is not None:
            return  # the log is of a newer generation by now, which an heir finds out when it reads it
        units = self.shares[heir]
        receiver = self._receivers[heir] = Receiver(host, self.name, self.lost, {})
        receiver.units = units
        host.receivers[self.name] = receiver
        image, epochs = self.disk.image, {unit: self.own.share(unit).epoch + 1 for unit in units}
        keys = [key for key in self.run.checks.keys if self._goes_with(key, units)]
        receiver.told(("announce", 0, units, epochs))
        for key in keys:
            receiver.told(("state", 0, key, image.state.get(key, ())))
        ledger = {row: entry for row, entry in image.ledger.items() if entry[0] in keys}
        receiver.told(("ship", 0, units, ledger, self.own.apart(units), image.batch, False))
        self.world.after(LOOK_EVERY, self._ask, receiver)

    def _ask(self, receiver: Receiver) -> None:
        """Heirs do not rely on being told.

        One that has prepared looks for a will, and asks the host if that is back; one that cannot prepare drops what it has.
        """
        if not receiver.alive or "heirs wait to be told" in self.world.holes:
            return
        match receiver.phase(0):
            case Phase.PREPARED:
                receiver.ask(0)
            case Phase.ABSENT:
                receiver.over(AbortHeard(0))
            case Phase.WRITING | None:
                self.world.after(LOOK_EVERY, self._ask, receiver)

    def _goes_with(self, key: int, units: Units) -> bool:
        group = key % len(self.own.groups)
        return key in units.keys or (group in units.groups and key not in self.own.keys)

    def _look(self) -> None:
        """Until all have prepared, or one of them cannot: it has died, or it is a batch ahead."""
        alive = [receiver.alive for receiver in self._receivers.values()]
        if len(alive) < len(self.shares):
            gone = any(self.world.hosts.get(heir) is None for heir in self.shares)
            if not gone and self.run.controller.alive:
                self.world.after(LOOK_EVERY, self._look)
                return
        phases = [receiver.phase(0) for receiver in self._receivers.values()]
        prepared = all(phase is Phase.PREPARED for phase in phases) and len(phases) == len(self.shares)
        failed = Phase.ABSENT in phases or Phase.DROPPED in phases
        if "a will for one" in self.world.holes and Phase.PREPARED in phases:
            self._write()
            return
        if not all(alive) or not self.run.controller.alive or failed or len(phases) < len(self.shares):
            self._give_up()
        elif prepared:
            self.world.after(self.world.delay(), self._write)
        else:
            self.world.after(LOOK_EVERY, self._look)

    def _give_up(self) -> None:
        self.world.tell("driver", "gives up", self.name)
        for receiver in self._receivers.values():
            if receiver.alive:
                self.world.after(self.world.delay(), receiver.over, AbortHeard(0))
        self.world.rescued.discard(self.lost)
        self.run.checks.ended(self.name, 0, 1, "given up")
        self.world.after(self.world.delay(), self.run.restart, self.lost)

    # -- the will, and after it --------------------------------------------------------------------------------------

    def _write(self) -> None:
        """The driver may be gone by now, with or without having written it."""
        if not self.run.controller.alive:
            self._give_up()
            return
        self.world.tell("driver", "writes", self.name)
        for heir, units in self.shares.items():
            self.own.cut(units, heir)
            self.own.release(f"{self.name}/{heir}", units, heir)
        self.disk.image.own = self.own.to_dict()
        self.world.wills[self.lost] = (self.name, self.shares)
        self.run.checks.owners()
        for heir in self.shares:
            self.world.after(self.world.delay() * 3, self._tell, heir)
        self._watch()

    def _tell(self, heir: str) -> None:
        """An heir that has died meanwhile finds the will by itself."""
        receiver = self._receivers.get(heir)
        if receiver is not None and receiver.alive:
            epochs = {unit: self.own.share(unit).epoch for unit in self.shares[heir]}
            receiver.told(("released", 0, epochs))

    def _watch(self) -> None:
        """Until all heirs own their shares for good: then nobody needs the log any more."""
        durable = {heir: self.run.checks.durable(heir) for heir in self.shares}
        if any(f"{self.name}/0" in own.incoming for own in durable.values()):
            self.world.after(LOOK_EVERY, self._watch)
            return
        self.world.tell("driver", "forgets", self.lost)
        del self.run.checks.disks[self.lost]
        del self.world.hosts[self.lost]
        self.run.checks.ended(self.name, 1, 0, "")

"""The simulated controller: asks for migrations by chance, and keeps a table that nothing depends on. It may be away."""

from __future__ import annotations

from typing import Any

from godwit.model.ownership import Stand
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from tests.sim.checks import Checks
from tests.sim.router import Table
from tests.sim.world import World

PROTOCOLS = ("pause", "fetch", "push", "live", "live-unordered", "standby")


class Controller:
    def __init__(
        self, world: World, checks: Checks, first: Routing, hosts: tuple[str, ...], protocol: str | None
    ) -> None:
        self.world, self.checks = world, checks
        self.alive = True
        self.requests = 0  # yet to be made
        self._first = first
        self._hosts = hosts
        self._protocol = protocol
        self._routing = first.joined(hosts)
        self._count = 0
        self.asking: set[str] = set()  # migrations of which nobody has said yet whether they have begun
        self._last: tuple[str, str, Units] | None = None  # origin, target, units of the last request

    def table(self) -> Table:
        """For a task that starts: today's table, or the very first."""
        return Table(self._first if self.world.dice.random() < 0.5 else self._routing)

    def schedule(self, requests: int, horizon: int) -> None:
        self.requests = requests
        for _ in range(requests):
            self.world.at(self.world.now + self.world.dice.randint(2, horizon), self._request)

    def crash(self) -> None:
        self.alive = False
        self.world.after(20 + self.world.delay(), self._restart)

    def _restart(self) -> None:
        self.alive = True

    def _request(self) -> None:
        if not self.alive:
            self.world.after(20, self._request)
            return
        self._learn()
        self.requests -= 1
        dice = self.world.dice
        plan = self._again() if self._last is not None and dice.random() < 0.4 else self._plan()
        if plan is None or self.world.rescued & {plan[0], plan[1]}:
            return
        origin, target, units = self._last = plan
        migration = f"m{self._count}"
        self._count += 1
        protocol = self._protocol or dice.choice(PROTOCOLS)
        steps = self._order(list(units))
        side_by_side = dice.choice((None, None, 1, 2, 3))
        self.checks.protocols[migration] = protocol
        self.world.tell("controller", "asks", migration, protocol, origin, "to", target, steps)
        self.asking.add(migration)
        question = ("migrate", migration, target, protocol, steps, side_by_side)
        self.world.ask(self, "controller", origin, question, lambda said: self._asked(migration, origin, said))
        if dice.random() < 0.15:
            self.world.after(dice.randint(1, 40), self._tell, ("abort", migration), origin)
        if protocol == "standby":
            word = "hand over" if dice.random() < 0.85 else "abort"
            self.world.after(dice.randint(5, 60), self._tell_until_over, (word, migration), origin)

    def _asked(self, migration: str, origin: str, said: str) -> None:
        self.asking.discard(migration)
        if said == "refused":
            self.checks.ended(migration, 0, 0, "refused")

    def _tell(self, question: tuple[Any, ...], host: str) -> None:
        self.world.ask(self, "controller", host, question, lambda _: None)

    def _tell_until_over(self, question: tuple[Any, ...], host: str) -> None:
        """A standby stands until it is told: as long as it does, somebody tells it."""
        at = self.world.hosts.get(host)
        if question[1] in self.checks.outcomes:
            return
        if at is not None:
            self._tell(question, host)
        self.world.after(40, self._tell_until_over, question, host)

    def _learn(self) -> None:
        """From what hosts say that they own."""
        for name, host in self.world.hosts.items():
            if host is not None:
                mine = {unit: host.own.share(unit).epoch for unit in host.own.mine()}
                self._routing = self._routing.moved(mine, name)

    # -- plans -------------------------------------------------------------------------------------------------------

    def _plan(self) -> tuple[str, str, Units] | None:
        dice = self.world.dice
        origin = dice.choice(self._hosts)
        target = dice.choice([host for host in self._hosts if host != origin])
        host = self.world.hosts.get(origin)
        if host is None:
            return None
        mine = host.own.mine()
        if not mine:
            return None
        apart = self._around_a_key_apart() if dice.random() < 0.5 else None
        if apart is not None:
            return apart
        match dice.randint(0, 4):
            case 0:
                units = mine  # the whole host
            case 1 | 2:
                units = self._single_keys(host)
            case 3:
                units = Units.of(dice.choice(list(mine)))
            case _:
                units = Units.of(*dice.sample(list(mine), (len(mine) + 1) // 2))
        return (origin, target, units) if units else None

    def _around_a_key_apart(self) -> tuple[str, str, Units] | None:
        """A key that is owned apart from its group, or that group, goes somewhere: to each other, too."""
        dice = self.world.dice
        apart = sorted(self._routing.apart)
        if not apart:
            return None
        key = dice.choice(apart)
        unit = Unit("key", key) if dice.random() < 0.5 else Unit("group", self._routing.group(key))
        origin = self._routing.owner_of(unit)
        return origin, dice.choice([host for host in self._hosts if host != origin]), Units.of(unit)

    def _single_keys(self, host: Any) -> Units:
        keys = [key for key in self.checks.keys if host.own.of(key).stand is Stand.MINE]
        return Units.of(*(Unit("key", key) for key in self.world.dice.sample(keys, min(len(keys), 2))))

    def _again(self) -> tuple[str, str, Units]:
        """The last one back again, or once more."""
        assert self._last is not None
        origin, target, units = self._last
        return (target, origin, units) if self.world.dice.random() < 0.6 else self._last

    def _order(self, units: list[Unit]) -> list[Units]:
        """Sudden, fluid, or batched."""
        size = self.world.dice.choice((len(units), 1, 2))
        self.world.dice.shuffle(units)
        return [Units.of(*units[at : at + size]) for at in range(0, len(units), size)]

"""Migrations by chance: which keys go where by which protocol, and what the driver does for each until it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from godwit.errors import DefinitionError, GodwitError, HostUnavailable
from godwit.model.ownership import Ownership, Stand
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.handover.outgoing import union
from godwit.transport import typed
from tests.sim.flock import Flock
from tests.sim.kernel import Kernel

PROTOCOLS = ("pause", "fetch", "push", "live", "live-unordered", "standby")
AT_BATCH = 0.4  # of the moves
OPENING_S = 0.01  # about how long hosts take to open a batch
STANDS_S = (0.1, 0.5, 0.5, 3.0)  # how long a standby stands before it is told to hand over


@dataclass(frozen=True, slots=True)
class Order:
    """`abort_after_s`: the user changes their mind. `stands_s`: a standby is told to hand over then."""

    name: str
    operator: str
    origin: str
    target: str
    protocol: str
    steps: tuple[Units, ...]
    side_by_side: int | None = None
    abort_after_s: float | None = None
    stands_s: float = 0.5

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"steps": [units.to_dict() for units in self.steps]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Order:
        return cls(**data | {"steps": tuple(map(Units.from_dict, data["steps"]))})


class Moves:
    """`keys`: the routing hashes of the keys there are. `protocol`: the only one, if there is to be one only.

    `note`: is given each move that is asked for.
    """

    def __init__(
        self,
        kernel: Kernel,
        flock: Flock,
        keys: Sequence[int],
        protocol: str | None,
        note: Callable[[Sequence[Any]], None],
    ) -> None:
        self._kernel, self._flock, self._keys, self._note = kernel, flock, keys, note
        self._protocol = protocol
        self._last: Order | None = None
        self._count = 0
        self._batches = 0
        self._at_batch: Counter[int] = Counter()  # by the number of a batch: moves that begin with it
        self.planned = 0  # yet to be asked for
        self.asked = 0
        self.outcomes: dict[str, str] = {}

    def plan(self, count: int, within_s: float, batches: int) -> None:
        """Some at any time, some while hosts open a batch and fire its timers. `batches`: so many are begun at least."""
        dice = self._kernel.dice
        for _ in range(count):
            self.planned += 1
            if dice.random() < AT_BATCH:
                self._at_batch[dice.randint(1, batches)] += 1
            else:
                self._kernel.after(0.2 + dice.random() * within_s, self._begin)

    def batch_began(self) -> None:
        """Spark has begun a batch, or has begun it again."""
        self._batches += 1
        for _ in range(self._at_batch.pop(self._batches, 0)):
            self._kernel.after(self._kernel.dice.random() * OPENING_S, self._begin)

    def _begin(self) -> None:
        self.planned -= 1
        order = None if self._flock.recovering else self._order()
        if order is not None:
            self._last = order
            self._note(("move", order.to_dict()))
            self.ask_for(order)

    def ask_for(self, order: Order) -> None:
        self._kernel.points.reach(f"driver asks for {order.name}")
        self.asked += 1
        self._flock.migrations.add(order.name)
        self._flock.by_driver(order.name, lambda: self._follow(order))

    # -- choosing ----------------------------------------------------------------------------------------------------

    def _order(self) -> Order | None:
        dice = self._kernel.dice
        operator = dice.choice(list(self._flock.operators))
        up = self._flock.up()
        if len(up) < 2:
            return None
        origin, target = dice.sample(up, 2)
        if self._last is not None and dice.random() < 0.3 and {self._last.origin, self._last.target} <= set(up):
            origin, target = self._last.target, self._last.origin  # back again, perhaps while the last is under way
        owned, there = self._flock.ownership(origin, operator), self._flock.ownership(target, operator)
        units = [] if owned is None or there is None else self._units(owned, there)
        if not units:
            return None
        dice.shuffle(units)
        size = dice.choice((len(units), 1, 2))
        steps = tuple(Units.of(*units[at : at + size]) for at in range(0, len(units), size))
        self._count += 1
        return Order(
            f"m{self._count}",
            operator,
            origin,
            target,
            self._protocol or dice.choice(PROTOCOLS),
            steps,
            dice.choice((None, None, 1, 2)),
            dice.random() if dice.random() < 0.15 else None,
            dice.choice(STANDS_S),
        )

    def _units(self, owned: Ownership, there: Ownership) -> list[Unit]:
        """All of a host, some single keys, one unit, keys that go back to the owner of their group, or half of them."""
        dice, mine = self._kernel.dice, list(owned.mine())
        keys = [Unit("key", key) for key in self._keys if owned.of(key).stand is Stand.MINE]
        back = [key for key in keys if there.groups[key.id % len(there.groups)].stand is Stand.MINE]
        if back and dice.random() < 0.4:
            return back
        match dice.randint(0, 3):
            case 0:
                return mine
            case 1:
                return dice.sample(keys, min(2, len(keys)))
            case 2:
                return dice.sample(mine, min(1, len(mine)))
            case _:
                return dice.sample(mine, (len(mine) + 1) // 2)

    # -- following ---------------------------------------------------------------------------------------------------

    def _follow(self, order: Order) -> None:
        self._kernel.tell(
            "driver", "asks for", order.name, order.protocol, order.origin, "to", order.target, order.steps
        )
        try:
            self.outcomes[order.name] = self._asked(order) or self._seen_through(order)
        finally:
            self._flock.migrations.discard(order.name)
            self._flock.standing.pop(order.name, None)

    def _asked(self, order: Order) -> str:
        """Why it has not begun; empty if it has."""
        request = messages.StartMigration(
            order.name,
            order.operator,
            order.target,
            order.protocol,
            tuple(order.steps),
            side_by_side=order.side_by_side,
        )
        try:
            self._flock.ask(order.origin, request)
        except DefinitionError:
            return "refused"
        except HostUnavailable:
            return "not asked"
        return ""

    def _seen_through(self, order: Order) -> str:
        began_s, told = self._kernel.time_s, ""
        while True:
            try:
                answer = self._flock.ask(order.origin, messages.ReportMigration(order.name, 1.0))
            except HostUnavailable:
                if order.origin in self._flock.lost:
                    return "origin lost"
                self._kernel.sleep(0.1)
                continue
            for unit, epoch in answer.moved.items():
                self._flock.moved(order.operator, {unit: epoch}, order.target)
            if answer.state != "running":
                return _outcome(answer)
            told = self._tell(order, self._kernel.time_s - began_s, told)
            self._stand(order, answer, told)

    def _stand(self, order: Order, answer: messages.MigrationReport, told: str) -> None:
        """While copies stand and nothing else has been asked for, others may take over from their origin."""
        copied = [name for name, _ in answer.phases].count("copied")
        if order.protocol == "standby" and not told and copied >= answer.steps:
            units = union(order.steps)
            self._flock.standing[order.name] = (order.operator, order.origin, order.target, units)
        else:
            self._flock.standing.pop(order.name, None)

    def _tell(self, order: Order, age_s: float, told: str) -> str:
        """What the origin has been told so far: to hand over, or to leave off."""
        if order.target in self._flock.lost or (order.abort_after_s is not None and age_s > order.abort_after_s):
            request: typed.Request[typed.Done] = messages.AbortMigration(order.name)
        elif order.protocol == "standby" and age_s > order.stands_s:
            request = messages.HandOverStandby(order.name)
        else:
            return told
        if request.kind == told or self._flock.recovering:
            return told
        self._flock.standing.pop(order.name, None)
        try:
            self._flock.ask(order.origin, request)
        except GodwitError:
            return told
        return request.kind


def _outcome(answer: messages.MigrationReport) -> str:
    if answer.state == "unknown":
        return "origin restarted"
    if not answer.done:
        return "stayed"
    return "in part" if answer.dropped else "done"

"""One run: a small world drawn from a seed, its faults, and the end that it must come to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from godwit.errors import InvariantBroken
from godwit.model.ownership import Ownership
from godwit.model.routing import Routing
from tests.sim.checks import Checks
from tests.sim.controller import Controller
from tests.sim.disk import Disk, Row
from tests.sim.host import Host
from tests.sim.query import Query
from tests.sim.takeover import Takeover
from tests.sim.world import Breach, World

HORIZON = 150  # about how long an undisturbed run takes
TAKEN_OVER = 0.4  # of the hosts that crash, if nothing stands against it
AFTER_FAULTS_MAX = 6_000  # by then everything has come to an end
EVENTS_MAX = 60_000
KINDS = (
    "host crash",
    "host crash",
    "host crash",
    "both crash",
    "connection loss",
    "connection loss",
    "partition",
    "task crash",
    "speculation",
    "query crash",
    "controller crash",
)
EFFECTS = tuple(
    "Offer Lend Copy Cut Ship Release TellReleased Resume Forget Expect Persist AnswerPrepared AnswerDeclined Serve"
    " Discard AskOutcome".split()
)


@dataclass(slots=True)
class Result:
    seed: int
    faults: Counter[str]
    outcomes: Counter[str]
    events: int
    breach: str = ""
    invariant: str = ""
    story: list[str] = field(default_factory=list)


class Run:
    def __init__(self, seed: int, protocol: str | None = None, holes: frozenset[str] = frozenset()) -> None:
        self.seed = seed
        self.world = world = World(seed, holes)
        dice = world.dice
        self.hosts = tuple(f"H{at}" for at in range(dice.randint(2, 4)))
        groups = dice.choice((4, 8, 12))
        keys = sorted(dice.sample(range(1, 10_000), dice.randint(4, 14)))
        self.batches = [
            [self._lane(keys) for _ in range(lanes)]
            for lanes in [dice.randint(1, 3)]
            for _ in range(dice.randint(2, 4))
        ]
        self.checks = Checks(world, keys, self.batches)
        first = Routing.spread(self.hosts[: dice.randint(1, len(self.hosts))], groups)
        for name in self.hosts:
            disk = self.checks.disks[name] = Disk(Ownership.initial(name, first).to_dict())
            Host(world, self.checks, name, disk, self.hosts)
        self.controller = Controller(world, self.checks, first, self.hosts, protocol)
        self.query = Query(world, self.checks, self.batches, self.controller.table)
        self._plan_moves()
        self._until = 0  # when the last fault is over
        self._at_effect: dict[tuple[str, int], str] = {}
        self._effects: Counter[str] = Counter()
        world.on_effect = self._effect
        world.repeat = dice.choice((0.0, 0.0, 0.2))
        self._plan_faults(dice.choice((0, 1, 2, 3, 4, 6, 9)))

    def _lane(self, keys: list[int]) -> list[int]:
        """Some keys far more often than others."""
        dice = self.world.dice
        return [keys[int(len(keys) * dice.random() ** 2)] for _ in range(dice.randint(4, 24))]

    def _plan_moves(self) -> None:
        """Mostly a few, now and then none, or so many that keys and groups go round and meet again."""
        dice = self.world.dice
        chance = dice.random()
        if chance < 0.03:
            self.controller.schedule(0, HORIZON)
        elif chance < 0.9:
            self.controller.schedule(dice.choice((1, 2, 3, 4, 5, 8)), HORIZON)
        else:
            self.controller.schedule(20, HORIZON * 4)

    # -- faults ------------------------------------------------------------------------------------------------------

    def _plan_faults(self, count: int) -> None:
        """Some at any time, most soon after some effect of a migration, where they hurt most."""
        dice = self.world.dice
        for _ in range(count):
            kind = dice.choice(KINDS)
            if dice.random() < 0.4:
                self.world.at(dice.randint(1, HORIZON + 60), self._fault, kind)
            else:
                self._at_effect[dice.choice(EFFECTS), dice.randint(1, 4)] = kind

    def _effect(self, name: str, host: Host) -> None:
        self._effects[name] += 1
        kind = self._at_effect.pop((name, self._effects[name]), None)
        if kind is not None:
            victim = host if self.world.dice.random() < 0.6 else None
            self.world.after(self.world.dice.choice((0, 0, 1, 2, 4, 8)), self._fault, kind, victim)

    def _fault(self, kind: str, victim: Host | None = None) -> None:
        self.world.tell("fault", kind)
        if kind == "host crash" and victim is not None and victim.alive:
            self._kill(victim)
            happened = True
        else:
            happened = getattr(self, "_" + kind.replace(" ", "_"))()
        if happened:
            self.world.faults[kind] += 1
            self._until = max(self._until, self.world.now + 100)

    def _host_crash(self) -> bool:
        up = [host for host in self.world.hosts.values() if host is not None]
        if not up:
            return False
        involved = [host for host in up if host.movers or host.receivers]
        self._kill(self.world.dice.choice(involved if involved and self.world.dice.random() < 0.8 else up))
        return True

    def _both_crash(self) -> bool:
        up = [host for host in self.world.hosts.values() if host is not None]
        for host in self.world.dice.sample(up, min(len(up), 2)):
            self._kill(host)
        return bool(up)

    def _kill(self, host: Host) -> None:
        self.world.tell("fault", "crash of", host.name)
        host.crash()
        self.checks.owners()
        self.checks.kept()
        if self.world.dice.random() < TAKEN_OVER and Takeover.possible(self, host.name):
            self.world.after(self.world.delay(), self._take_over, host.name)
        else:
            self.world.after(self.world.dice.randint(2, 60), self.restart, host.name)

    def _take_over(self, name: str) -> None:
        if Takeover.possible(self, name):
            self.world.faults["takeover"] += 1
            Takeover(self, name)
        else:
            self.restart(name)

    def restart(self, name: str) -> None:
        self.world.tell(name, "restarts")
        Host(self.world, self.checks, name, self.checks.disks[name], self.hosts)
        self.checks.owners()

    def _connection_loss(self) -> bool:
        between = [pipe for pipe in self.world.pipes if pipe.nodes[0] in self.hosts]
        pipes = between if between and self.world.dice.random() < 0.6 else list(self.world.pipes)
        if pipes:
            pipe = self.world.dice.choice(pipes)
            self.world.tell("fault", "connection", *pipe.nodes)
            pipe.snap()
        return bool(pipes)

    def _partition(self) -> bool:
        a, b = self.world.dice.sample((*self.hosts, "query", "controller"), 2)
        self.world.tell("fault", "partition", a, b)
        self.world.part(a, b, self.world.dice.randint(5, 80))
        return True

    def _task_crash(self) -> bool:
        return self.query.kill_task()

    def _speculation(self) -> bool:
        return self.query.speculate()

    def _query_crash(self) -> bool:
        if self.query.over:
            return False
        self.query.crash()
        return True

    def _controller_crash(self) -> bool:
        self.controller.crash()
        return True

    # -- to the end --------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        breach: Breach | None = None
        try:
            while not self._over():
                if not self.world.step():
                    raise Breach("I6", f"nothing happens any more: {self._left()}")
                late = self.world.now > max(self._until, HORIZON * 2) + AFTER_FAULTS_MAX
                if late or self.world.events > EVENTS_MAX:
                    raise Breach("I6", f"it does not end: {self._left()}")
            self.checks.at_the_end(self._expected())
        except Breach as found:
            breach = found
        except InvariantBroken as found:
            breach = Breach("I1", str(found))
        return self._result(breach)

    def _over(self) -> bool:
        return self.query.over and not self.controller.requests and not self.query.tasks and not self._left()

    def _left(self) -> list[str]:
        found = self.checks.unresolved()
        return found if self.query.over else [f"batch {self.query.batch} of {len(self.batches)}", *found]

    def _expected(self) -> dict[int, list[Row]]:
        """What a sequential run leaves."""
        expected: dict[int, list[Row]] = {}
        for batch, lanes in enumerate(self.batches):
            for lane, keys in enumerate(lanes):
                for number, key in enumerate(keys):
                    expected.setdefault(key, []).append((batch, lane, number))
        return expected

    def _result(self, breach: Breach | None) -> Result:
        outcomes: Counter[str] = Counter()
        for migration in self.checks.protocols:
            done, dropped, reason = self.checks.outcomes.get(migration, (0, 0, "the origin restarted"))
            outcomes[_outcome(done, dropped, reason)] += 1
        result = Result(self.seed, self.world.faults, outcomes, self.world.events)
        if breach is not None:
            result.breach, result.invariant = str(breach), breach.invariant
            result.story = [_line(entry) for entry in self.world.story]
        return result


def run_seed(seed: int, protocol: str | None = None) -> Result:
    return Run(seed, protocol).run()


def _outcome(done: int, dropped: int, reason: str) -> str:
    if reason == "refused":
        return "refused"
    if done:
        return "in part" if dropped else "done"
    return "stayed"


def _line(entry: tuple[Any, ...]) -> str:
    now, who, *what = entry
    return f"{now:6} {who:10} {' '.join(str(word) for word in what)}"

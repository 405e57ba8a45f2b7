"""Goes through every step of a hand-over between real host processes, strikes there, and looks whether anything was lost.

Rows flow all the time, every key in every batch, and every output is checked as it comes: a row that is lost, applied twice or
out of order shows in the next output of its key. After each strike every group has one owner, no copies are left, and the same
keys go to and fro by other protocols.
"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from godwit.errors import GodwitError
from godwit.migration import PROTOCOLS
from godwit.runtime import messages
from godwit.transport import typed
from tests.integration.nest import Nest
from tests.integration.test_migration import GROUPS, Flow, groups_of, keys_on, migrate, owners, report
from tests.spark.flocks import wait_until

ROOT = Path(__file__).parents[2]
HOSTS = {"origin": "host-0", "target": "host-1"}
KEYS = 120
MOVING = 16
TRIES = 12
BY_CHANCE = (
    "step_ledger",
    "step_rows",
    "step_changes",
)  # messages that depend on which rows have come: not every run has them
FAULTS = ("kill", "kill_peer", "cut")

Point = tuple[str, str, str]  # side, step, before or after


@dataclass(frozen=True)
class Strike:
    point: Point
    fault: str

    def __str__(self) -> str:
        return f"{self.fault} {self.point[2]} {self.point[1]} at the {self.point[0]}"


class StruckNest(Nest):
    """Hosts that strike as the plan in `room` says."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self.room = checkpoint.parent / "room"
        self.room.mkdir()

    def begin(self, host: str) -> subprocess.Popen[bytes]:
        given = [pickle.dumps(self.config(host)).hex(), str(self.room)]
        process = subprocess.Popen([sys.executable, "-m", "tests.faults.struck_host", *given], cwd=ROOT)
        self._processes.setdefault(host, []).append(process)
        return process

    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [process for started in self._processes.values() for process in started]


class Sweep:
    def __init__(self, nest: StruckNest, protocol: str) -> None:
        self.nest = nest
        self.protocol = protocol
        self.struck: list[Strike] = []  # where a strike came down
        self.missed: list[
            Strike
        ] = []  # steps that were passed in one run and, for want of rows, in none of the next ones
        self._flow = Flow(nest, KEYS, 500)
        self._moving = groups_of(nest, "host-0")[:MOVING]
        self._others = cycle(sorted(set(PROTOCOLS) - {protocol, "standby"}))
        self._count = 0

    # -- one migration -----------------------------------------------------------------------------------------------

    def run(self, *strikes: Strike) -> list[dict[str, Any]]:
        """One hand-over and what befalls it; gives its trace. Runs again if it did not come to the last strike."""
        name = ""
        for _ in range(TRIES):
            name = self._begin(strikes)
            landed = self._landed(name, strikes)
            self._revive()
            self._settle(name)
            self._check(name, strikes)
            if landed:
                self.struck += strikes[-1:]
                return self._trace(name)
        assert strikes[-1].point[1].endswith(BY_CHANCE), f"{self.protocol}: never came to {strikes[-1]}"
        self.missed.append(strikes[-1])
        return self._trace(name)

    def _begin(self, strikes: tuple[Strike, ...]) -> str:
        self._count += 1
        name = f"{self.protocol}-{self._count}"
        plan = {"migration": name, "strikes": [{"point": list(s.point), "fault": s.fault} for s in strikes]}
        fresh = self.nest.room / "plan.new"
        fresh.write_text(json.dumps(plan))
        fresh.replace(self.nest.room / "plan.json")
        half = MOVING // 2
        steps = [{"groups": part, "keys": []} for part in (self._moving[:half], self._moving[half:])]
        with suppress(GodwitError):  # it may be killed before it can say that it has begun
            migrate(self.nest, "host-0", "host-1", self.protocol, steps, name)
            if self.protocol == "standby":
                self._hand_over(name)
        return name

    def _hand_over(self, name: str) -> None:
        client = self.nest.client("host-0")
        typed.ask(client, messages.HandOverStandby(name))
        client.close()

    def _landed(self, name: str, strikes: tuple[Strike, ...]) -> bool:
        """Whether every strike has come down where it was meant to; a process that was killed is dead of just that."""
        last = self.nest.room / f"mark-{name}-{len(strikes) - 1}"

        def done() -> bool:
            for at in range(len(strikes) - 1):
                if (self.nest.room / f"mark-{name}-{at}").exists():
                    self._revive()
            return last.exists() or self._is_over(name)

        if not strikes:
            return True
        wait_until(done, what=f"{name} {strikes}")
        if not last.exists():
            return False
        for at, strike in enumerate(strikes):
            mark = json.loads((self.nest.room / f"mark-{name}-{at}").read_text())
            assert tuple(mark["point"]) == strike.point, mark
            if strike.fault.startswith("kill"):
                (victim,) = [one for one in self.nest.processes() if one.pid == mark["victim"]]
                assert victim.wait(30) == -signal.SIGKILL, strike
        return True

    def _revive(self) -> None:
        dead = [host for host in HOSTS.values() if self.nest.process(host).poll() is not None]
        if dead:
            self.nest.start(*dead)

    # -- what holds after it -----------------------------------------------------------------------------------------

    def _is_over(self, name: str) -> bool:
        try:
            return report(self.nest, "host-0", name).state in ("ended", "unknown")
        except GodwitError:
            return False

    def _settle(self, name: str) -> None:
        wait_until(lambda: self._is_over(name), what=f"{name} is over")
        wait_until(lambda: len(owners(self.nest)) == GROUPS, what="every group has one owner")
        wait_until(lambda: sum(keys_on(self.nest).values()) == KEYS, what="no copies are left")

    def _check(self, name: str, strikes: tuple[Strike, ...]) -> None:
        """Every key has gone on counting, and goes to the other host and back by other protocols."""
        try:
            self._flow.wait_batches(2)
            left = [group for group in self._moving if owners(self.nest)[group] == "host-0"]
            if left:
                self._move("host-0", "host-1", left, f"{name}-on")
            self._move("host-1", "host-0", self._moving, f"{name}-back")
        except BaseException as error:
            error.add_note(f"{self.protocol}: {', '.join(map(str, strikes)) or 'no strike'}")
            raise

    def _move(self, origin: str, target: str, groups: list[int], name: str) -> None:
        """A strike that comes late may cut this one's connection: then the keys stay, and it is asked for again."""
        for again in ("", "-again"):
            migrate(self.nest, origin, target, next(self._others), [{"groups": groups, "keys": []}], name + again)
            told = self._ended(origin, name + again)
            if told.done:
                break
        assert (told.done, told.dropped) == (1, 0), told

    def _ended(self, origin: str, name: str) -> messages.MigrationReport:
        wait_until(lambda: report(self.nest, origin, name).state == "ended", what=f"{name} has ended")
        return report(self.nest, origin, name)

    def end(self) -> None:
        self._flow.end()
        assert self.nest.state(self._flow.batch - 1) == self._flow.seen.counts

    # -- what there is to go through ---------------------------------------------------------------------------------

    def _trace(self, name: str) -> list[dict[str, Any]]:
        lines = (self.nest.room / f"trace-{name}").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def points(self, *first: Strike) -> list[Point]:
        """The steps that a hand-over passes after these strikes, in the order of their first time."""
        trace = self.run(*first)
        return list(dict.fromkeys(tuple(line["point"]) for line in trace if line["strikes"] == len(first)))


@contextmanager
def sweeping(directory: Path, protocol: str) -> Iterator[Sweep]:
    nest = StruckNest(directory / "godwit")
    nest.start_all()
    try:
        sweep = Sweep(nest, protocol)
        yield sweep
        sweep.end()
    finally:
        nest.close()

"""The simulated query: batches of lanes, tasks that may be killed, tried again or doubled, and commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.router import Table, Task
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.checks import Checks


class Query:
    def __init__(
        self, world: World, checks: Checks, batches: list[list[list[int]]], tables: Callable[[], Table]
    ) -> None:
        self.world, self.checks, self.batches = world, checks, batches
        self.alive = True
        self.run = 1
        self.batch = 0
        self.tasks: list[Task] = []
        self.over = False
        self._tables = tables  # gives a table for a task, perhaps an old one
        self._done: dict[int, list[tuple[int, int, int]]] = {}
        world.after(1, self._begin, self.run)

    def _begin(self, run: int) -> None:
        if run == self.run and not self.over:
            self._done = {}
            self.world.tell("query", "begins batch", self.batch, "run", run)
            for lane in range(len(self.batches[self.batch])):
                self.attempt(run, self.batch, lane)

    def attempt(self, run: int, batch: int, lane: int) -> None:
        if (run, batch) == (self.run, self.batch) and lane not in self._done and not self.over:
            self.tasks.append(Task(self, batch, lane, self.batches[batch][lane], self._tables()))

    def finished(self, task: Task) -> None:
        self.end(task)
        if (task.run, task.batch) != (self.run, self.batch) or task.lane in self._done:
            return
        self._done[task.lane] = task.outputs
        if len(self._done) == len(self.batches[self.batch]):
            self.world.after(self.world.delay(), self._commit, self.run, self.batch)

    def end(self, task: Task) -> None:
        task.kill()
        self.tasks.remove(task)

    def fenced(self, task: Task) -> None:
        self.checks.fenced(task, self)
        self.end(task)

    def _commit(self, run: int, batch: int) -> None:
        if (run, batch) != (self.run, self.batch) or self.over:
            return
        self.checks.committed(batch, self._done)
        for task in list(self.tasks):
            self.end(task)
        self.batch += 1
        self.over = self.batch == len(self.batches)
        if not self.over:
            self.world.after(self.world.delay() * 3, self._begin, run)

    def crash(self) -> None:
        self.run += 1
        for task in list(self.tasks):
            self.end(task)
        self.world.after(5 + self.world.delay(), self._begin, self.run)

    def kill_task(self) -> bool:
        if not self.tasks:
            return False
        task = self.world.dice.choice(self.tasks)
        self.end(task)
        self.world.after(self.world.delay(), self.attempt, task.run, task.batch, task.lane)
        return True

    def speculate(self) -> bool:
        if not self.tasks:
            return False
        task = self.world.dice.choice(self.tasks)
        self.attempt(task.run, task.batch, task.lane)
        return True

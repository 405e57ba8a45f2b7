"""A machine is lost with the end of a log that had been answered for: who rests on it repeats it, and nothing counts twice.

With durability "process" what a host has answered may still be in the memory of its machine. The file that the machine leaves
is cut here as it was before a chunk that the host has answered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from godwit.errors import CheckpointCorrupt, WorkLost
from godwit.model.units import Units
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.router.routing_table import write_routing
from tests.integration.nest import OPERATOR, Nest, rows
from tests.integration.test_migration import Checked, groups_of, migrate, report
from tests.integration.test_takeover import taken_over
from tests.spark.flocks import wait_until

LOST, KEYS = "host-2", 50


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Nest(tmp_path / "godwit", hosts=3).start_all()
    write_routing(str(nest.checkpoint), OPERATOR, nest.routing)
    yield nest
    nest.close()


class Machine:
    """What of a host's log is on its disk, and what only in its memory."""

    def __init__(self, nest: Nest, host: str) -> None:
        self._nest, self._host = nest, host
        self._sizes: dict[Path, int] = {}

    def written_back(self) -> None:
        """All that is in the log now survives the machine."""
        logs = host_directory(str(self._nest.checkpoint), self._host).glob("log-*")
        self._sizes = {path: path.stat().st_size for path in logs}

    def lose(self) -> None:
        self._nest.kill(self._host)
        for path in host_directory(str(self._nest.checkpoint), self._host).glob("log-*"):
            os.truncate(path, self._sizes.get(path, 0))


def interrupted(nest: Nest, machine: Machine, heirs: list[str], copies: dict[str, dict[str, Units]]) -> None:
    """The machine is lost when the host has answered the first half of a lane, and others take over. Ends with the task."""
    halves = [rows(range(100, 140), KEYS), rows(range(140, 180), KEYS)]
    seen: list[int] = []

    def arriving() -> Iterator[object]:
        machine.written_back()
        yield halves[0]
        assert seen, "the first half has been answered"
        machine.lose()
        taken_over(nest, LOST, heirs, copies)
        yield halves[1]

    for row in nest.run(1, "0", arriving(), real_time=True):  # type: ignore[arg-type]
        seen.append(row["n"])  # noqa: PERF401 one by one: the input looks at them


def repeated(nest: Nest) -> None:
    """The task again, and a batch after it: every key goes on where it was."""
    checked = Checked()
    checked.counts = dict.fromkeys(range(KEYS), 2)
    checked.take(nest.run(1, "0", [rows(range(100, 140), KEYS), rows(range(140, 180), KEYS)]))
    checked.take(nest.run(2, "0", [rows(range(180, 240), KEYS)]))
    assert nest.state(2) == checked.counts


def test_a_task_whose_work_was_lost_with_a_machine_is_repeated_at_the_heirs(nest: Nest) -> None:
    Checked().take(nest.run(0, "0", [rows(range(100), KEYS)]))
    with pytest.raises(
        WorkLost, match=r"lost together with work that it had answered.*operator=count.*batch=1.*lane=0"
    ):
        interrupted(nest, Machine(nest, LOST), ["host-0", "host-1"], {})
    repeated(nest)


def test_no_later_rows_are_applied_before_rows_that_were_lost_with_a_machine(nest: Nest) -> None:
    """The host is started again. A task that went on with its second half would have it applied before the first."""
    Checked().take(nest.run(0, "0", [rows(range(100), KEYS)]))
    machine = Machine(nest, LOST)
    seen: list[object] = []

    def arriving() -> Iterator[object]:
        machine.written_back()
        yield rows([*range(100, 140), *range(100, 140)], KEYS)
        assert seen, "the first half has been answered"
        machine.lose()
        nest.start(LOST)
        yield rows(range(100, 140), KEYS)

    outputs = nest.run(1, "0", arriving(), real_time=True)  # type: ignore[arg-type]
    with pytest.raises(WorkLost, match=r"restarted without work that it had answered.*operator=count.*batch=1.*lane=0"):
        seen.extend(outputs)  # one by one: the input looks at them
    checked = Checked()
    checked.counts = dict.fromkeys(range(KEYS), 2)
    checked.take(nest.run(1, "0", [rows([*range(100, 140), *range(100, 140)], KEYS), rows(range(100, 140), KEYS)]))


def test_copies_that_are_ahead_of_what_is_left_of_the_log_are_not_used(nest: Nest) -> None:
    """They hold rows that the log does not know any more; a task that is repeated would count them twice."""
    Checked().take(nest.run(0, "0", [rows(range(100), KEYS)]))
    groups = groups_of(nest, LOST)
    migrate(nest, LOST, "host-1", "standby", [{"groups": groups, "keys": []}])
    wait_until(lambda: "copied" in dict(report(nest, LOST).phases), what="copies stand")
    with pytest.raises(WorkLost):
        interrupted(nest, Machine(nest, LOST), ["host-1"], {OPERATOR: {"host-1": Units(frozenset(groups))}})
    repeated(nest)


@pytest.mark.parametrize("heirs", [True, False], ids=["taken-over", "started-again"])
def test_a_committed_batch_that_is_lost_with_a_machine_is_noticed(nest: Nest, heirs: bool) -> None:
    """Nobody repeats its tasks. Whoever takes the log for complete would go on without it, and nobody would know."""
    machine = Machine(nest, LOST)
    for batch in range(4):
        list(nest.run(batch, "0", [rows(range(50), KEYS)]))
        if batch == 1:
            machine.written_back()
    machine.lose()
    told = "the log of host-2 ends in batch 1, but batch 2 was committed after it"
    if heirs:
        with pytest.raises(CheckpointCorrupt, match=told):
            taken_over(nest, LOST, ["host-0", "host-1"], {})
    nest.start(LOST)
    with pytest.raises(CheckpointCorrupt, match=told.replace("2 was", "3 was")):
        list(nest.run(4, "0", [rows(range(50), KEYS)]))

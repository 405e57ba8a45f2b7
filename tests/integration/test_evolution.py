"""Operators that are defined again on real hosts: killed, moved, restored and taken over while state has both forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import godwit
from godwit.errors import DefinitionError
from godwit.runtime.messages import HandOverStandby
from godwit.runtime.router.routing_table import write_routing
from tests.integration.nest import OPERATOR, Nest, operator_of, rows
from tests.integration.test_backups import lose_directory, wait_stands
from tests.integration.test_migration import KEYS, Checked, chunks, ended, groups_of, migrate, report
from tests.integration.test_takeover import taken_over
from tests.spark.flocks import Count, wait_until


class Narrow(Count):
    state = {"n": pa.int32()}


class Wide(Count):
    """The count is wider, beside a new field; and every output has a column more."""

    state = {"share": pa.float64(), "n": pa.int64()}
    output_schema = pa.schema([*Count.output_schema, ("twice", pa.int64())])

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, count=count, twice=2 * count)


class Job:
    """A query that is stopped and started again, batch by batch, while its operator is defined again."""

    def __init__(self, nest: Nest) -> None:
        self.nest, self.seen = nest, Checked()
        self.batch, self.runs = 0, 1

    def run(self, count: int = 4) -> None:
        self.seen.take(self.nest.run(self.batch, "0", chunks(self.batch, count), f"run-{self.runs}"))
        self.batch += 1

    def redefine(self, *hosts: str) -> None:
        """As the driver does; only these hosts hear of it."""
        nest = self.nest
        spec = operator_of(Wide()).spec.after(nest.operator.spec)
        nest.operator = replace(operator_of(Wide()), spec=spec, definition=uuid4().hex)
        nest.controller.add(nest.operator)
        for host in hosts:
            nest.define(host)
        self.runs += 1
        nest.runs = {f"run-{self.runs}"}

    def check(self) -> None:
        assert self.nest.state(self.batch - 1) == self.seen.counts


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    hosts, backup = getattr(request, "param", (2, False))
    nest = Nest(tmp_path / "godwit", hosts=hosts, processor=Narrow(), backup=backup)
    nest.operator = replace(nest.operator, definition="first")
    nest.controller.add(nest.operator)
    nest.start_all()
    write_routing(str(nest.checkpoint), OPERATOR, nest.routing)
    job = Job(nest)
    job.run()
    yield job
    nest.close()


def test_hosts_are_killed_before_and_after_they_hear_of_a_definition(job: Job) -> None:
    nest = job.nest
    nest.kill("host-1")
    job.redefine("host-0")
    nest.kill("host-0")
    nest.start("host-0", "host-1")
    job.check()
    job.run()
    for host in ("host-0", "host-1"):
        nest.kill(host)
        nest.start(host)
    job.run()
    job.check()


def test_a_batch_that_was_applied_in_part_begins_anew_with_the_next_definition(job: Job) -> None:
    nest = job.nest
    outputs = nest.run(1, "0", chunks(1, 4), "run-1")
    assert "twice" not in next(outputs)
    outputs.close()  # type: ignore[attr-defined]
    nest.kill("host-1")
    job.redefine("host-0")
    nest.start("host-1")
    job.check()
    again = list(nest.run(1, "0", chunks(1, 4), "run-2"))
    assert all(row["twice"] == 2 * row["count"] for row in again)
    job.seen.take(iter(again))
    job.batch += 1
    job.check()


@pytest.mark.parametrize("protocol", ["push", "live", "pause", pytest.param("standby", marks=pytest.mark.long)])
def test_a_host_with_the_old_form_sends_state_to_one_with_the_new_form(job: Job, protocol: str) -> None:
    nest = job.nest
    job.redefine("host-1")
    moving = groups_of(nest, "host-0")
    migrate(nest, "host-0", "host-1", protocol, [{"groups": moving, "keys": []}])
    if protocol == "standby":
        wait_until(lambda: "copied" in dict(report(nest, "host-0").phases), what="the copies are complete")
        nest.define("host-0")
        nest.ask("host-0", HandOverStandby("m1"))
    assert len(ended(nest, "host-0").moved) == len(moving)
    nest.define("host-0")
    job.run()
    nest.kill("host-1")
    nest.start("host-1")
    job.run()
    job.check()


def test_a_host_with_the_old_form_refuses_state_of_the_new_form_and_nothing_is_lost(job: Job) -> None:
    nest = job.nest
    job.redefine("host-1")
    moving = groups_of(nest, "host-1")[:5]
    migrate(nest, "host-1", "host-0", "push", [{"groups": moving, "keys": []}])
    told = ended(nest, "host-1")
    assert (len(told.moved), groups_of(nest, "host-1")[:5]) == (0, moving)
    nest.define("host-0")
    migrate(nest, "host-1", "host-0", "push", [{"groups": moving, "keys": []}], "m2")
    assert len(ended(nest, "host-1", "m2").moved) == 5
    job.run()
    job.check()


def test_a_router_brings_the_definition_to_a_host_that_has_missed_it(job: Job) -> None:
    job.redefine("host-0")
    job.seen.take(job.nest.run(1, "0", chunks(1, 4), "run-2", definition=job.nest.operator.definition))
    job.batch += 1
    job.check()


def test_a_router_of_an_earlier_definition_is_refused(job: Job) -> None:
    old = job.nest.operator
    job.redefine("host-0", "host-1")
    route = {"definition": "another", "output_schema": old.spec.output_schema}
    with pytest.raises(DefinitionError, match="defined again since this DataFrame was made"):
        list(job.nest.run(1, "0", chunks(1, 1), "run-2", **route))
    job.run()
    job.check()


@pytest.mark.parametrize("job", [(3, False)], indirect=True)
def test_heirs_with_the_new_form_take_over_a_host_with_the_old_form(job: Job) -> None:
    nest = job.nest
    job.redefine("host-0", "host-1")
    nest.kill("host-2")
    taken_over(nest, "host-2", ["host-0", "host-1"], {})
    job.check()
    job.run()
    job.check()


@pytest.mark.parametrize("job", [(2, True)], indirect=True)
def test_a_backup_with_both_forms_is_restored(job: Job) -> None:
    nest = job.nest
    job.redefine("host-0", "host-1")
    job.seen.take(nest.run(1, "0", iter([rows(range(job.batch * 1000, job.batch * 1000 + 50), KEYS)]), "run-2"))
    job.batch += 1
    wait_stands(nest, "host-0", "host-1")
    nest.kill("host-0")
    lose_directory(nest, "host-0")
    nest.start("host-0")
    job.check()
    job.seen.take(nest.run(2, "0", iter([rows(range(1050, 1100), KEYS)]), "run-2"))
    job.batch += 1
    job.check()

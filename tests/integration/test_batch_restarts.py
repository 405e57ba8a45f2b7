"""A batch DataFrame whose host is killed while it is evaluated: state and code are there again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from godwit.model.progress import BatchRef
from godwit.runtime.router.route import Task
from godwit.runtime.router.router import Router
from tests.integration.nest import INPUT, Nest, operator_of, rows
from tests.spark.flocks import Count


def evaluated(nest: Nest, lane: str, numbers: Sequence[int], scope: str = "abcd-3") -> list[tuple[int, int]]:
    router = Router(nest.route(), Task(BatchRef(scope, scope, 0), lane, scope))
    outputs = [row for batch in router.run([rows(numbers)], INPUT) for row in batch.to_pylist()]
    return [(row["n"], row["count"]) for row in outputs]


def test_an_evaluation_goes_on_after_a_restart_of_its_host(tmp_path: Path) -> None:
    nest = Nest(tmp_path / "godwit", hosts=1)
    nest.operator = operator_of(Count(), ephemeral=True)
    nest.controller.add(nest.operator)
    nest.start_all()
    try:
        first = evaluated(nest, "0", range(7))
        assert first == [(n, 1) for n in range(7)]
        nest.kill("host-0")
        nest.start("host-0")
        assert evaluated(nest, "1", range(7, 14)) == [(n, 2) for n in range(7, 14)]
        assert evaluated(nest, "0", range(7)) == first, "a task that is run again gets the same"
        assert evaluated(nest, "0", range(7), "abcd-4") == first, "another evaluation begins afresh"
    finally:
        nest.close()

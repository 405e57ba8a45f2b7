"""The simulator finds what is known to be wrong: each hole, within a stated range of seeds, by an invariant that is named."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import pytest

from tests.sim import run
from tests.sim.__main__ import alike
from tests.sim.holes import HOLES
from tests.sim.run import Result

PATIENCE_S = 100.0  # simulated, for a run that does not end: routers give up after 60


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Any]:
    """A process in which strings hash alike in every test run, so that a seed is always the same schedule."""
    with alike(), get_context("spawn").Pool(1) as pool:
        yield pool


def schedule(seed: int, protocol: str | None) -> Result:
    with patch.object(run, "AFTER_FAULTS_S", PATIENCE_S):
        return run.run_seed(seed, protocol)


def first_breach(name: str) -> Result | None:
    hole = HOLES[name]
    for seed in range(hole.first, hole.first + hole.seeds):
        with hole.put_back():
            result = schedule(seed, hole.protocol)
        if result.breach:
            return result
    return None


@pytest.mark.parametrize("name", HOLES)
def test_hole_is_found(name: str, elsewhere: Any) -> None:
    hole = HOLES[name]
    result = elsewhere.apply(first_breach, (name,))
    assert result is not None, f"not found in {hole.seeds} seeds from {hole.first} on: {hole.about}"
    assert result.invariant in hole.found_by, f"seed {result.seed}: {result.breach}"
    assert result.story
    whole = elsewhere.apply(schedule, (result.seed, hole.protocol))
    assert not whole.breach, f"seed {result.seed} breaks {whole.breach} without the hole, too"

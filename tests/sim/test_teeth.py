"""The simulator finds what is known to be wrong: each hole, in the schedule recorded for it, by an invariant that is named."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import pytest

from tests.sim.__main__ import alike
from tests.sim.holes import HOLES
from tests.sim.recording import TRIES, breaking, replayed
from tests.sim.run import Result
from tests.sim.schedule import RECORDED, Schedule


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Any]:
    """A process in which strings hash alike in every test run, so that the same dice are always the same schedule."""
    with alike(), get_context("spawn").Pool(1) as pool:
        yield pool


def found(name: str) -> Result | None:
    """What the hole breaks, with the first dice that show it."""
    return next(breaking(Schedule.read(RECORDED / f"{name}.json")), None)


def held(name: str, dice: int) -> Result:
    return replayed(Schedule.read(RECORDED / f"{name}.json"), dice)


@pytest.mark.parametrize("name", HOLES)
def test_hole_is_found(name: str, elsewhere: Any) -> None:
    hole = HOLES[name]
    result = elsewhere.apply(found, (name,))
    assert result is not None, f"not found with {TRIES} dice; record another schedule: {hole.about}"
    assert result.invariant in hole.found_by, f"dice {result.seed}: {result.breach}"
    assert result.story
    whole = elsewhere.apply(held, (name, result.seed))
    assert not whole.breach, f"dice {result.seed} break {whole.breach} without the hole, too"

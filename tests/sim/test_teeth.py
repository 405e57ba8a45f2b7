"""The simulator finds what is known to be wrong: each hole, within a stated range of seeds, by the invariant named."""

from __future__ import annotations

import pytest

from tests.sim.holes import HOLES, Hole
from tests.sim.run import Run


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.name.replace(" ", "-"))
def test_hole_is_found(hole: Hole) -> None:
    for seed in range(hole.first, hole.first + hole.seeds):
        result = Run(seed, hole.protocol, hole.switches).run()
        if result.breach:
            assert result.invariant in hole.found_by, result.breach
            assert result.story
            return
    pytest.fail(f"not found in {hole.seeds} seeds from {hole.first} on: {hole.about}")

"""A lane that has ended, and an attempt at it that goes on: as a speculative copy does until Spark kills it."""

from __future__ import annotations

import pytest

from godwit.errors import NotReplayable
from godwit.runtime.chunk.chunk import Chunk
from tests.unit.test_instance import rows, totals
from tests.unit.test_replay import FIRST, begun


def test_rows_behind_the_end_of_a_lane_are_refused_before_they_change_anything() -> None:
    """Before: they were applied, and the attempt that brought them may never come to its end, which would have told."""
    instance = begun()
    two = Chunk(*rows((1, 0, 5), (2, 0, 5)))
    instance.apply(FIRST, "0", two)
    instance.finish(FIRST, "0", 2, None)
    with pytest.raises(NotReplayable, match=r"had 2 rows before and now has a row 2.*lane=0"):
        instance.apply(FIRST, "0", Chunk(*rows((1, 0, 5), (2, 0, 5), (3, 0, 5))))
    assert instance.state.key_count == 2
    assert instance.batch.spoiled


def test_rows_before_the_end_of_a_lane_are_answered_again() -> None:
    instance = begun()
    two = Chunk(*rows((1, 0, 5), (2, 0, 5)))
    instance.apply(FIRST, "0", two)
    instance.finish(FIRST, "0", 2, None)
    assert totals(instance.apply(FIRST, "0", two)) == [5, 5]

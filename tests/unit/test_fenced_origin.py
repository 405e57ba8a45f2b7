"""A process that was taken for lost, and goes on, has nothing to say about the steps that its heirs have prepared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from godwit.errors import StaleGeneration
from godwit.runtime.handover.answers import outcome_of
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.messages import ReportOutcome
from godwit.state.fencing import claim
from tests.unit.pair import Pair, joined

STEP = "will-host-0-2.sum/0"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with joined(tmp_path) as pair:
        yield pair


def test_a_fenced_host_does_not_say_that_its_heirs_step_stays(pair: Pair) -> None:
    """Before: it did, the heirs dropped the step, and after the will nobody owned the keys of the lost host."""
    assert outcome_of(pair.b.port, "host-0", "sum", STEP) == "kept", "a host that was started again after all"
    claim(host_directory(str(pair.checkpoint), "host-0"))  # as the driver does before others take over
    with pytest.raises(StaleGeneration, match="replaced by a newer one"):
        pair.a.moves.report_outcome(ReportOutcome("sum", STEP))
    assert outcome_of(pair.b.port, "host-0", "sum", STEP) == "away"

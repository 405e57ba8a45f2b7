"""Hosts killed and connections cut at every step of a hand-over, in real processes: nothing is lost, doubled or left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from godwit.migration import PROTOCOLS
from tests.faults.sweep import FAULTS, Strike, sweeping

pytestmark = [pytest.mark.faults]

# What brings about the steps that a hand-over without faults does not pass: by protocol, or for all others.
SHIPPED = Strike(("origin", "do:Ship", "after"), "abort")
COPYING = Strike(("origin", "do:Copy", "after"), "abort")
TOLD = Strike(("origin", "do:TellReleased", "before"), "cut")
UNSHIPPED = Strike(("origin", "send:step_end", "before"), "cut")
ABORTS = {"live-unordered": COPYING, "live": COPYING, "standby": COPYING}
LOSSES = {"live-unordered": UNSHIPPED}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_every_step_of_a_hand_over(
    tmp_path: Path, protocol: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with sweeping(tmp_path, protocol) as sweep:
        for point in sweep.points():
            sweep.run(Strike(point, fault))
        for first in (ABORTS.get(protocol, SHIPPED), LOSSES.get(protocol, TOLD)):
            for point in sweep.points(first):
                sweep.run(first, Strike(point, fault))
    with capsys.disabled():
        print(f"\n{protocol}, {fault}: {len(sweep.struck)} points, {len(sweep.missed)} missed")  # noqa: T201 how much was gone through
    assert len(sweep.struck) > 50
    assert len(sweep.missed) < len(sweep.struck) / 10


@pytest.mark.parametrize(
    ("protocol", "strikes"),
    [
        ("live-unordered", [UNSHIPPED]),
        ("live-unordered", [Strike(("target", "take:step_end", "before"), "kill")]),
        ("live-unordered", [UNSHIPPED, Strike(("target", "do:AnswerMissing", "after"), "kill_peer")]),
        ("push", [Strike(("origin", "sync:do:Release", "before"), "kill")]),
        ("fetch", [Strike(("target", "do:Serve", "after"), "cut")]),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(map(str, value)),
)
def test_some_steps_of_a_hand_over(tmp_path: Path, protocol: str, strikes: list[Strike]) -> None:
    with sweeping(tmp_path, protocol) as sweep:
        sweep.run(*strikes)
        assert sweep.struck == strikes[-1:]

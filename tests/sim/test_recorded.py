"""Schedules in which something once went wrong hold: they are kept by the names of points, not by turns of an old program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sim.holes import HOLES
from tests.sim.points import Point
from tests.sim.recording import replayed
from tests.sim.run import Run
from tests.sim.schedule import RECORDED, Schedule

FILES = sorted(RECORDED.glob("*.json"))
DICE_MIN, DICE_MAX = 2, 8  # thrown until the schedule has come to all of its points


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_schedule_holds(path: Path) -> None:
    """And comes to its points: a name that nobody reaches any more would leave its fault out."""
    schedule = Schedule.read(path)
    missing = {(happening.at.name, happening.at.nth) for happening in schedule.happenings}
    for tried, dice in enumerate(dict.fromkeys((*schedule.dice, *range(DICE_MAX)))):
        run = Run(dice, schedule=schedule)
        result = run.run()
        assert not result.breach, f"dice {dice}: {result.breach}\n" + "\n".join(result.story[-60:])
        missing = {(name, nth) for name, nth in missing if run.kernel.points.counts[name] < nth}
        if not missing and tried + 1 >= DICE_MIN:
            return
    pytest.fail(f"never reached: {sorted(missing)}")


def test_copies_of_a_standby_take_over() -> None:
    """Rarely met by chance: the copies stand, nothing else moves, and their origin is lost."""
    result = replayed(Schedule.read(RECORDED / "takeover-by-copies.json"), 0)
    assert result.faults["takeover by copies"] == 1
    assert not result.breach


def test_every_hole_has_a_schedule() -> None:
    assert {path.stem for path in FILES} >= set(HOLES)


def test_what_is_written_down_is_read_again(tmp_path: Path) -> None:
    run = Run(5)
    run.run()
    schedule = run.schedule("a test", "still-applies")
    schedule.write(tmp_path / "one.json")
    again = Schedule.read(tmp_path / "one.json")
    again.write(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()
    assert [happening.at for happening in again.happenings] == [happening.at for happening in schedule.happenings]


def test_an_action_happens_at_its_point_and_not_before() -> None:
    happened: list[Any] = []
    run = Run(1)
    points = run.kernel.points
    points.at(Point("host-0 is gone", 2), lambda: happened.append(points.counts["host-0 is gone"]))
    for _ in range(3):
        points.reach("host-0 is gone")
    assert happened == [2]

"""A target whose disk is full while it takes over a step: its memory says that it owns the step, and its changelog does not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from godwit import ports
from godwit.errors import CheckpointUnusable
from godwit.model.units import Units
from tests.unit.pair import ALL, Pair, joined, kind_is


class Disks(ports.Machine):
    """On which nothing can be written below a directory that is full."""

    full: Path | None = None

    def writev(self, fd: int, views: Sequence[Any]) -> int:
        if self.full is not None and Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(self.full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().writev(fd, views)


@pytest.fixture
def disks() -> Iterator[Disks]:
    disks = Disks()
    with ports.use(disks):
        yield disks


@pytest.fixture
def pair(tmp_path: Path, disks: Disks) -> Iterator[Pair]:
    with joined(tmp_path) as pair:
        yield pair


def test_an_origin_is_not_told_of_what_is_in_memory_only(pair: Pair, disks: Disks) -> None:
    """Before: on the next connection the target said that it had served the step, and the origin dropped the state.

    When the target started again from its changelog, nobody owned the keys, and their state was lost.
    """
    pair.a.put(0, (1, 5))
    pair.there = kind_is("step_released")
    pair.migrate("pause")
    first = pair.wait_connection(1)
    first.there.wait_stopped()
    disks.full = pair.b.directory
    pair.there = kind_is()
    first.there.flow()
    first.back.wait_sent("target_failed")
    first.break_()
    second = pair.wait_connection(2)
    second.back.wait_sent("target_failed")
    assert "step_served" not in second.back.kinds()
    disks.full = None
    pair.b.restart()
    assert pair.wait_ended().done == 1
    assert pair.b.owned() == ALL
    assert pair.b.totals() == {1: 5}


def test_a_mover_ends_though_its_changelog_has_failed(pair: Pair) -> None:
    """Before: its thread ended with an error when it dropped the last steps, and whoever waited for its end waited on."""
    first, second = Units(frozenset({0, 1})), Units(frozenset({2, 3}))
    pair.back = kind_is("step_served")
    pair.migrate("pause", first, second, side_by_side=2)
    connection = pair.wait_connection(1)
    connection.back.wait_sent("step_served", 2)
    pair.a.log.fail(CheckpointUnusable("no space left on device"))
    pair.back = kind_is()
    connection.back.flow()
    pair.wait_ended()
    pair.a.restart()
    pair.wait(lambda: pair.a.mover.ended)
    assert pair.b.owned() == ALL

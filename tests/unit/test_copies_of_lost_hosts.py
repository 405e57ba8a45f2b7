"""Copies that were kept on a host that is lost, or of one: what becomes of them when its keys have other owners."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from godwit.control.migration_report import MoveProgress
from godwit.control.moves import Move
from godwit.control.reservations import Reservation
from godwit.errors import DefinitionError
from godwit.model.units import Units
from godwit.spark.change.migration_handle import Migration
from godwit.spark.change.request_queue import QueuedRequest, RequestQueue

GROUPS = Units(frozenset((1, 2)))


def kept(stood: bool) -> tuple[RequestQueue, Migration, MoveProgress]:
    nothing: Any = SimpleNamespace()
    parts: Any = SimpleNamespace(tables=nothing, members=nothing, history=nothing)
    changes = RequestQueue(parts, nothing, "test")
    options: Any = None
    migration = Migration("m1", "standby", options, lambda *_: None)
    progress = MoveProgress(Move("count", "host-0", "host-1", GROUPS), stood=stood)
    migration.moves.append(progress)
    changes._requests.append(QueuedRequest(migration, lambda: None, Reservation.of([progress.move])))  # type: ignore[arg-type,return-value]
    return changes, migration, progress


@pytest.mark.parametrize("stood", [True, False])
def test_copies_on_it_are_given_up_also_while_they_are_made_again(stood: bool) -> None:
    """Their origin may have noticed first that the host is gone, and be about to send them there once more."""
    changes, migration, _ = kept(stood)
    changes.taken_over("host-1")
    assert migration.aborting == "host-1, which had the copies, was lost"


def test_what_stood_for_it_has_taken_over() -> None:
    changes, migration, progress = kept(stood=True)
    changes.taken_over("host-0")
    assert progress.left == 0
    assert migration.aborting is None


def test_an_operator_whose_keys_move_is_not_at_rest_and_complete_copies_are() -> None:
    for stood in (True, False):
        changes, migration, _ = kept(stood)
        migration.enter("standing" if stood else "moving")
        with changes.at_rest("another"):
            pass
        if stood:
            with changes.at_rest("count"):
                pass
        else:
            with pytest.raises(DefinitionError, match=r"m1 \(standby\) moves state of this operator now"):
                changes.at_rest("count").__enter__()


def test_what_did_not_stand_has_not() -> None:
    changes, _, progress = kept(stood=False)
    changes.taken_over("host-0")
    assert progress.left == 2

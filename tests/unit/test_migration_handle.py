"""A migration as its user holds it in hand: waiting, aborting, the report, and the bar for people."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from godwit.control.migration_report import MoveProgress
from godwit.control.moves import Move
from godwit.errors import HostUnavailable
from godwit.model.units import Units
from godwit.spark.change.migration_handle import Migration, show
from godwit.spark.change.move_options import CheckedOptions


class Asked:
    def __init__(self) -> None:
        self.aborts: list[str] = []

    def migration(self, groups: int = 4) -> Migration:
        made = Migration("m1", "move", CheckedOptions(), lambda _, reason: self.aborts.append(reason))
        made.moves.append(MoveProgress(Move("speed", "a", "b", Units(frozenset(range(groups))))))
        return made


def heard(migration: Migration, *moved: int) -> None:
    answer: dict[str, Any] = {"keys": 7, "bytes": 70, "moved": [["group", group, 2] for group in moved]}
    migration.take_report(migration.moves[0], answer)


def test_waiting_ends_when_it_ends_and_not_before() -> None:
    migration = Asked().migration()
    assert not migration.wait(0.01)
    ender = threading.Thread(target=migration.end, args=("done",))
    ender.start()
    assert migration.wait(10)
    ender.join()


def test_the_error_that_ended_it_is_raised_to_whoever_waits() -> None:
    migration = Asked().migration()
    migration.end("incomplete", "lost", HostUnavailable("2 units stayed"))
    with pytest.raises(HostUnavailable, match="2 units stayed"):
        migration.wait()
    assert migration.report()["outcome"] == "incomplete"


def test_a_standby_is_waited_for_until_it_stands() -> None:
    migration = Asked().migration()
    migration.enter("moving")
    migration.stands()
    assert not migration.wait(0.01), "its copies have not caught up"
    migration.moves[0].stood = True
    migration.stands()
    assert migration.wait(10)
    assert [name for name, _ in migration.report()["phases"]] == ["queued", "moving", "standing"]


def test_abort_is_told_once_and_not_after_the_end() -> None:
    asked = Asked()
    migration = asked.migration()
    migration.abort("why")
    migration.abort("again")
    assert asked.aborts == ["why"]
    ended = asked.migration()
    ended.end("done")
    ended.abort()
    assert asked.aborts == ["why"]


def test_progress_and_report_count_what_was_heard() -> None:
    migration = Asked().migration()
    heard(migration, 1, 2)
    assert migration.progress()["units_moved"] == 2
    assert "2 of 4 units moved" in repr(migration)
    report = migration.report()
    assert (report["keys"], report["bytes"], report["groups_moved"], report["ended"]) == (7, 70, 2, None)


def test_the_time_until_the_last_key_serves_does_not_grow_afterwards() -> None:
    migration = Asked().migration()
    migration.served_at(migration._began_s + 1.5)
    migration.served_at(migration._began_s + 0.5)
    migration.end("done")
    assert migration.report()["reconfiguration_s"] == 1.5


def test_a_bar_is_drawn_only_where_a_person_sees_it(capfd: pytest.CaptureFixture[str]) -> None:
    migration = Asked().migration()
    heard(migration, 1)
    migration.end("done")
    show(migration, None)
    assert capfd.readouterr().err == ""
    show(migration, True)
    assert "move m1: done" in capfd.readouterr().err

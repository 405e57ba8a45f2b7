"""A flock that is scaled, drained and rebalanced while its query runs: the output and the state are as if nothing had moved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from godwit.control.moves import groups_in
from godwit.errors import DefinitionError, MoveConflict
from tests.spark.flocks import (
    OPERATOR,
    Count,
    RowCount,
    assert_exact,
    drain,
    pid_of,
    reach,
    start,
    state_of,
    wait_until,
)
from tests.spark.stage import frozen, staged

# -- the same answer -------------------------------------------------------------------------------------------------


LONG = pytest.mark.long


@pytest.mark.long
@pytest.mark.parametrize("order", ["sudden", "fluid", "hot-first", "by-backlog"])
def test_every_order_gives_the_same_answer(spark: SparkSession, tmp_path: Path, order: str) -> None:
    with staged(spark, tmp_path, work=8_000) as stage:
        stage.start()
        stage.runs()
        groups = list(range(0, 512, 8))
        report = stage.flock.move(OPERATOR, groups=groups, to="host-1", order=order, protocol="push").report()
        assert report["groups_moved"] == len(groups)
        stage.check()


@pytest.mark.long
def test_processor_of_pyspark_moves_too(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=6_000) as stage:
        frame = stage.flock.transformWithState(
            stage.work.stream(spark), "key", RowCount(), RowCount.output, name="rows"
        )
        query = start(frame, stage.sink, tmp_path / "rows")
        reach(query, stage.sink, 3)
        stage.flock.move("rows", groups=list(range(300)), to="host-1", check=True)
        drain(query)
        assert_exact(stage.sink.rows(), stage.work.truth())
        assert state_of(stage.flock, "rows") == stage.work.truth()


# -- standby and restart ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_copies_stand_until_they_are_handed_over(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path) as stage:
        stage.start()
        stage.runs()
        groups = list(range(100))
        with pytest.raises(DefinitionError, match=r"100 of 100 units have no copy.*flock\.standby"):
            stage.flock.move(OPERATOR, groups=groups, to="host-1", protocol="standby")
        copies = stage.flock.standby(OPERATOR, groups=groups, to="host-1")
        assert copies.progress()["phase"] == "standing"
        stage.runs()
        assert stage.owners() == {"host-0": 512, "host-1": 512}, "a copy owns nothing"
        with pytest.raises(MoveConflict, match=r"standby\) is under way.*abort\(\) it"):
            stage.flock.move(OPERATOR, groups=[5], to="host-1", protocol="pause")
        report = stage.flock.move(OPERATOR, groups=groups, to="host-1", protocol="standby").report()
        assert (report["outcome"], report["groups_moved"]) == ("done", 100)
        assert copies.wait(60)
        assert copies.report()["outcome"] == "done"
        stage.check()


@pytest.mark.long
def test_drained_host_is_taken_over_by_its_standby(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path) as stage:
        stage.start()
        stage.runs()
        stage.flock.standby(OPERATOR, to="host-1")
        stage.runs()
        assert stage.flock.drain("host-0", protocol="standby").report()["groups_moved"] == 512
        assert stage.owners() == {"host-1": 1024}
        stage.check()


@pytest.mark.long
def test_copies_are_given_up_when_asked(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=5_000) as stage:
        stage.start()
        copies = stage.flock.standby(OPERATOR, groups=[1, 2], to="host-1")
        copies.abort("no need")
        wait_until(lambda: copies.ended)
        assert copies.report()["outcome"] == "aborted"
        assert stage.owners() == {"host-0": 512, "host-1": 512}
        stage.check()


@pytest.mark.long
def test_restart_really_stops_the_query_and_the_hosts(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path) as stage:
        first = stage.start()
        stage.runs()
        before = {host: pid_of(stage.flock, host) for host in ("host-0", "host-1")}
        report = stage.flock.scale(3, protocol="restart", restart=stage.start).report()
        assert not first.isActive
        assert stage.query.isActive
        assert all(pid_of(stage.flock, host) != pid for host, pid in before.items())
        assert [name for name, _ in report["phases"]] == [
            "queued", "stopping", "starting", "joining", "moving", "restarting", "done"
        ]  # fmt: skip
        assert report["groups_moved"] == 341
        stage.check()


# -- requests side by side -------------------------------------------------------------------------------------------


def test_requests_for_other_keys_go_on_and_for_the_same_keys_wait(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=3_000, hosts=3, silent_s=None) as stage:
        flock = stage.flock
        stage.start()
        drain(stage.query)
        with frozen(flock, "host-2"):
            first = flock.move(OPERATOR, groups=[1, 2, 3], to="host-2", wait=False)
            assert flock.move(OPERATOR, groups=[4, 5], to="host-1").report()["outcome"] == "done"
            with pytest.raises(MoveConflict, match=r"is under way: it moves some of the same keys"):
                flock.move(OPERATOR, groups=[3, 9], to="host-1", on_conflict="refuse")
            second = flock.move(OPERATOR, groups=[3, 9], to="host-1", wait=False)
            assert not second.wait(0.5)
            assert second.progress()["phase"] == "queued"
        assert first.wait(60)
        assert second.wait(60)
        table = {group: row["host"] for row in flock.routing(OPERATOR) for group in groups_in(row["groups"])}
        assert [table[group] for group in (1, 2, 3, 4, 9)] == ["host-2", "host-2", "host-1", "host-1", "host-1"]
        stage.check()


def test_aborted_move_stays_and_one_in_line_never_begins(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=3_000, silent_s=None) as stage:
        stage.start()
        drain(stage.query)
        with frozen(stage.flock, "host-1"):
            first = stage.flock.move(OPERATOR, groups=[1, 2, 3], to="host-1", wait=False)
            second = stage.flock.move(OPERATOR, groups=[3], to="host-1", wait=False)
            second.abort()
            assert second.wait(60)
            first.abort("changed my mind")
        assert first.wait(60)
        assert first.report()["reason"] == "changed my mind"
        assert [one.report()["outcome"] for one in (first, second)] == ["aborted", "aborted"]
        assert stage.owners() == {"host-0": 512, "host-1": 512}
        stage.check()


# -- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_opened_again_everything_is_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path) as stage:
        stage.start()
        stage.runs()
        stage.flock.scale(3)
        stage.flock.move(OPERATOR, keys=[7], to="host-2")
        before, lines = stage.flock.routing(OPERATOR).to_dict()["rows"], stage.flock.history()
        stage.flock.close()
        shutil.rmtree(tmp_path / "flock" / "routing")  # only a hint: the hosts' logs are the facts
        stage.open(3)
        assert stage.flock.routing(OPERATOR).to_dict()["rows"] == before
        assert stage.flock.history()[: len(lines)] == lines
        stage.define()
        stage.start()
        stage.check()


@pytest.mark.parametrize("hosts", [pytest.param(1, marks=LONG), pytest.param(4, marks=LONG)])
def test_opened_with_another_number_of_hosts_it_is_scaled_before_anything_is_defined(
    spark: SparkSession, tmp_path: Path, hosts: int
) -> None:
    with staged(spark, tmp_path) as stage:
        stage.start()
        stage.runs()
        stage.flock.close()
        stage.open(hosts)
        assert sorted(stage.owners().values()) == [1024 // hosts] * hosts
        stage.define()
        stage.start()
        stage.check()


@pytest.mark.long
def test_an_operator_that_is_defined_later_lives_on_the_hosts_there_are(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=3_000) as stage:
        stage.flock.scale(3)
        stage.flock.drain("host-0")
        frame = stage.flock.process(stage.work.stream(spark), "key", Count(), name="later")
        query = start(frame, stage.sink, tmp_path / "later")
        drain(query)
        assert_exact(stage.sink.rows(), stage.work.truth())
        assert {row["host"] for row in stage.flock.routing("later")} == {"host-1", "host-2"}
        assert state_of(stage.flock, "later") == stage.work.truth()


def test_state_shows_each_key_once_with_its_owner_and_epoch(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=3_000) as stage:
        stage.start()
        drain(stage.query)
        before = {row["key"]: row["host"] for row in stage.flock.state(OPERATOR).collect()}
        moved = [key for key, host in before.items() if host == "host-0"][:3]
        stage.flock.move(OPERATOR, keys=moved, to="host-1")
        rows = stage.flock.state(OPERATOR).collect()
        assert len(rows) == len(before)
        for row in rows:
            here = row["key"] in moved
            assert (row["host"], row["epoch"]) == ("host-1" if here else before[row["key"]], 2 if here else 1)


def test_history_tells_who_moved_what_and_why(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, work=3_000) as stage:
        done = stage.flock.move(OPERATOR, groups=[3, 4, 5], to="host-1", protocol="pause")
        lines = [line for line in stage.flock.history(OPERATOR) if line.get("migration") == done.id]
        assert [line["event"] for line in lines] == ["requested", "began", "moved", "ended"]
        assert (lines[2]["origin"], lines[2]["target"], lines[2]["groups"]) == ("host-0", "host-1", "3-5")
        assert lines[3]["outcome"] == "done"
        assert [json.loads(text) for text in (tmp_path / "flock" / "history.jsonl").read_text().splitlines()] == (
            stage.flock.history()
        )
        (row,) = [row for row in stage.flock.routing(OPERATOR) if row["migration"] == done.id]
        assert (row["host"], row["groups"], row["since"]) == ("host-1", "3-5", lines[2]["at"])
        assert "3-5" in repr(stage.flock.routing(OPERATOR))


@pytest.mark.long
def test_rebalance_moves_the_load_of_a_busy_host_and_leaves_an_even_one_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    with staged(spark, tmp_path) as stage:
        stage.start()
        stage.runs()
        stage.flock.move(OPERATOR, groups=list(range(512)), to="host-1")
        stage.runs()
        report = stage.flock.rebalance(OPERATOR).report()
        assert report["groups_moved"] + report["keys_moved_apart"] > 0
        assert {move["origin"] for move in report["moves"]} == {"host-1"}
        stage.check()

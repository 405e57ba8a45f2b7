"""A flock that is scaled, drained and rebalanced while its query runs: the output and the state are as if nothing had moved."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import godwit
from godwit.errors import DefinitionError, NotEnoughSlots
from tests.spark.flocks import (
    OPERATOR,
    Count,
    Kept,
    KeyCount,
    RowCount,
    assert_exact,
    drain,
    kill_host,
    pid_of,
    reach,
    start,
    state_of,
    wait_until,
)


class Stage:
    """The key-count query on a flock, and what must come of it."""

    def __init__(self, spark: SparkSession, root: Path, rows: int = 9_000, hosts: int = 2) -> None:
        self.spark, self.root = spark, root
        self.work = KeyCount(rows, keys=120, per_batch=250)
        self.sink = Kept()
        self.open(hosts)

    def open(self, hosts: int) -> None:
        self.flock = godwit.Flock(self.spark, hosts=hosts, checkpoint=self.root / "flock")

    def define(self) -> None:
        self.frame = self.flock.process(self.work.stream(self.spark), "key", Count(), name=OPERATOR)

    def start(self) -> StreamingQuery:
        self.query = start(self.frame, self.sink, self.root / "spark")
        return self.query

    def runs(self) -> None:
        """Until a batch has gone through that began after this call."""
        reach(self.query, self.sink, len(self.sink.by_batch) + 2)

    def check(self) -> None:
        drain(self.query)
        assert_exact(self.sink.rows(), self.work.truth())
        assert state_of(self.flock) == self.work.truth()

    def owners(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.flock.routing(OPERATOR):
            found[row["host"]] = found.get(row["host"], 0) + row["group_count"]
        return found


@contextmanager
def staged(spark: SparkSession, root: Path, **given: Any) -> Iterator[Stage]:
    stage = Stage(spark, root, **given)
    try:
        stage.define()
        yield stage
    finally:
        stage.flock.close()


@contextmanager
def frozen(flock: godwit.Flock, host: str) -> Iterator[None]:
    """Nothing that needs this host goes on."""
    pid = wait_until(lambda: pid_of(flock, host))
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# -- the same answer -------------------------------------------------------------------------------------------------


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "protocol", [*(pytest.param(p, marks=LONG) for p in ("pause", "fetch", "live-unordered", "push")), "live"]
)
def test_out_single_keys_and_in_again_under_load(spark: SparkSession, tmp_path: Path, protocol: str) -> None:
    with staged(spark, tmp_path) as stage:
        stage.start()
        stage.runs()
        out = stage.flock.scale(3, protocol=protocol).report()
        assert (out["outcome"], out["groups_moved"], out["groups_minimum"]) == ("done", 341, 341)
        assert stage.owners() == {"host-0": 342, "host-1": 341, "host-2": 341}
        stage.runs()
        apart = stage.flock.move(OPERATOR, keys=list(range(20)), to="host-2", protocol=protocol).report()
        assert apart["keys_moved_apart"] > 0
        stage.runs()
        gone = stage.flock.drain("host-0", protocol=protocol).report()
        assert (gone["groups_moved"], gone["groups_minimum"]) == (342, 342)
        assert stage.flock.status()["hosts"].keys() == {"host-1", "host-2"}
        stage.check()


@pytest.mark.parametrize(
    "order", [*(pytest.param(order, marks=LONG) for order in ("sudden", "fluid", "hot-first")), "by-backlog"]
)
def test_every_order_gives_the_same_answer(spark: SparkSession, tmp_path: Path, order: str) -> None:
    with staged(spark, tmp_path, rows=8_000) as stage:
        stage.start()
        stage.runs()
        groups = list(range(0, 512, 8))
        report = stage.flock.move(OPERATOR, groups=groups, to="host-1", order=order, protocol="push").report()
        assert report["groups_moved"] == len(groups)
        stage.check()


def test_two_four_three_one_two_with_the_fewest_moves(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, rows=12_000) as stage:
        stage.start()
        for hosts in (4, 3, 1, 2):
            stage.runs()
            report = stage.flock.scale(hosts).report()
            assert report["groups_moved"] == report["groups_minimum"] > 0
            assert len(stage.flock.status()["hosts"]) == hosts
        assert stage.owners() == {"host-0": 512, "host-4": 512}, "names of hosts that left are not used again"
        stage.check()


@pytest.mark.long
def test_processor_of_pyspark_moves_too(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, rows=6_000) as stage:
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
        with pytest.raises(DefinitionError, match=r"standby\) is under way.*abort\(\) it"):
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
    with staged(spark, tmp_path, rows=5_000) as stage:
        stage.start()
        copies = stage.flock.standby(OPERATOR, groups=[1, 2], to="host-1")
        copies.abort("no need")
        wait_until(lambda: copies.ended)
        assert copies.report()["outcome"] == "aborted"
        assert stage.owners() == {"host-0": 512, "host-1": 512}
        stage.check()


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
    with staged(spark, tmp_path, rows=3_000, hosts=3) as stage:
        flock = stage.flock
        stage.start()
        drain(stage.query)
        with frozen(flock, "host-2"):
            first = flock.move(OPERATOR, groups=[1, 2, 3], to="host-2", wait=False)
            assert flock.move(OPERATOR, groups=[4, 5], to="host-1").report()["outcome"] == "done"
            with pytest.raises(DefinitionError, match=r"is under way: it moves some of the same keys"):
                flock.move(OPERATOR, groups=[3, 9], to="host-1", on_conflict="refuse")
            second = flock.move(OPERATOR, groups=[3, 9], to="host-1", wait=False)
            assert not second.wait(0.5)
            assert second.progress()["phase"] == "queued"
        assert first.wait(60)
        assert second.wait(60)
        table = {group: row["host"] for row in flock.routing(OPERATOR) for group in _groups(row["groups"])}
        assert [table[group] for group in (1, 2, 3, 4, 9)] == ["host-2", "host-2", "host-1", "host-1", "host-1"]
        stage.check()


def test_aborted_move_stays_and_one_in_line_never_begins(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, rows=3_000) as stage:
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


# -- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "killed"),
    [
        ("live", "host-0"),
        pytest.param("push", "host-1", marks=LONG),
        pytest.param("live", "host-1", marks=LONG),
        pytest.param("push", "host-0", marks=LONG),
        pytest.param("pause", "host-0", marks=LONG),
        pytest.param("pause", "host-1", marks=LONG),
    ],
)
def test_a_host_killed_on_the_way_changes_nothing(
    spark: SparkSession, tmp_path: Path, protocol: str, killed: str
) -> None:
    with staged(spark, tmp_path, rows=8_000) as stage:
        stage.start()
        stage.runs()
        groups = list(range(0, 512, 2))
        move = stage.flock.move(
            OPERATOR, groups=groups, to="host-1", protocol=protocol, step_units=16, gap_ms=5, wait=False
        )
        wait_until(lambda: move.progress()["moves"], what="it has begun")
        kill_host(stage.flock, killed)
        assert move.wait(120)
        assert move.report()["groups_moved"] == len(groups)
        assert stage.owners() == {"host-0": 256, "host-1": 768}
        stage.check()


# -- what is kept ----------------------------------------------------------------------------------------------------


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
    with staged(spark, tmp_path, rows=3_000) as stage:
        stage.flock.scale(3)
        stage.flock.drain("host-0")
        frame = stage.flock.process(stage.work.stream(spark), "key", Count(), name="later")
        query = start(frame, stage.sink, tmp_path / "later")
        drain(query)
        assert_exact(stage.sink.rows(), stage.work.truth())
        assert {row["host"] for row in stage.flock.routing("later")} == {"host-1", "host-2"}
        assert state_of(stage.flock, "later") == stage.work.truth()


def test_state_shows_each_key_once_with_its_owner_and_epoch(spark: SparkSession, tmp_path: Path) -> None:
    with staged(spark, tmp_path, rows=3_000) as stage:
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
    with staged(spark, tmp_path, rows=3_000) as stage:
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


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flock(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[godwit.Flock]:
    root = tmp_path_factory.mktemp("refused")
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        flock.process(KeyCount(10).stream(spark), "key", Count(), name=OPERATOR)
        flock.process(KeyCount(10).batch(spark), "key", Count(), name="batch")
        yield flock


@pytest.mark.parametrize(
    ("call", "arguments", "said"),
    [
        ("scale", {"hosts": 0}, "cannot have 0 hosts"),
        ("scale", {"hosts": "3"}, "cannot have '3' hosts"),
        ("scale", {"hosts": True}, "cannot have True hosts"),
        ("scale", {"hosts": 3, "protocol": "warp"}, r"protocol='warp' is not known\. Give one of: .*live.*restart"),
        ("scale", {"hosts": 3, "order": "slow"}, r"order='slow' is not known\. Give one of: sudden, fluid, batched"),
        ("scale", {"hosts": 3, "protocol": "restart"}, "nothing was given that starts it again"),
        ("scale", {"hosts": 3, "restart": print}, "restart= has no meaning"),
        ("scale", {"hosts": 3, "protocol": "standby"}, "decides itself where keys go"),
        ("scale", {"hosts": 3, "step_units": 0}, "step_units=0 is not possible"),
        ("scale", {"hosts": 3, "order": "fluid", "step_units": 4}, "step_units has no meaning with order='fluid'"),
        ("scale", {"hosts": 3, "rate_bytes_per_s": -1}, "rate_bytes_per_s=-1 is not possible"),
        ("scale", {"hosts": 3, "source": "backup"}, "source='backup' has no meaning with protocol='live'"),
        ("scale", {"hosts": 3, "protocol": "push", "check": True}, "check=True has no meaning with protocol='push'"),
        ("scale", {"hosts": 3, "on_conflict": "hope"}, "on_conflict='hope' is not known"),
        ("scale", {"hosts": 3, "speed": 9}, "there is no option 'speed'"),
        ("drain", {"host": "host-9"}, "'host-9' is no host of this flock.*host-0, host-1"),
        ("drain", {"host": 0}, "0 is no host of this flock"),
        ("drain", {"host": "host-0", "protocol": "standby"}, "512 of 512 units have no copy"),
        ("rebalance", {"operator": "none"}, "no operator of this name"),
        ("rebalance", {"operator": "batch"}, "no operator of this name, over a stream"),
        ("move", {"operator": "none", "groups": [1], "to": "host-1"}, "no operator of this name"),
        ("move", {"operator": "batch", "groups": [1], "to": "host-1"}, "no operator of this name, over a stream"),
        ("move", {"operator": OPERATOR, "groups": [1], "to": "host-7"}, "to='host-7' is no host"),
        ("move", {"operator": OPERATOR, "groups": [1], "to": "host-0"}, "host-0 owns all of it already"),
        ("move", {"operator": OPERATOR, "groups": [1024], "to": "host-1"}, "no group 1024.*0 to 1023"),
        ("move", {"operator": OPERATOR, "groups": [], "to": "host-1"}, "is not a list of groups"),
        ("move", {"operator": OPERATOR, "keys": ["C1"], "to": "host-1"}, "'C1' is no value of key column 'key'"),
        ("move", {"operator": OPERATOR, "keys": [1.5], "to": "host-1"}, "1.5 is no value of key column 'key'"),
        ("move", {"operator": OPERATOR, "keys": [None], "to": "host-1"}, "None is no value of key column 'key'"),
        ("move", {"operator": OPERATOR, "keys": [(1, 2)], "to": "host-1"}, "has 2 values"),
        ("move", {"operator": OPERATOR, "keys": 5, "to": "host-1"}, "is not a list of keys"),
        ("move", {"operator": OPERATOR, "to": "host-1"}, "keys= or groups="),
        ("move", {"operator": OPERATOR, "keys": [1], "groups": [1], "to": "host-1"}, "keys= or groups="),
        ("standby", {"operator": OPERATOR, "to": "host-9"}, "to='host-9' is no host"),
        ("standby", {"operator": OPERATOR, "to": "host-1", "protocol": "live"}, "kept by protocol 'standby'"),
        ("routing", {"operator": "none"}, "no operator of this name"),
        ("history", {"operator": "none"}, "no operator of this name"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_to_do(
    flock: godwit.Flock, call: str, arguments: dict[str, Any], said: str
) -> None:
    before = flock.history()
    with pytest.raises(DefinitionError, match=said) as raised:
        getattr(flock, call)(**arguments)
    assert raised.value.todo
    assert flock.history() == before


def test_more_hosts_than_task_slots_are_refused(flock: godwit.Flock) -> None:
    with pytest.raises(NotEnoughSlots, match="9 hosts need 10 task slots"):
        flock.scale(9)
    assert len(flock.status()["hosts"]) == 2


def test_the_last_host_is_not_drained(spark: SparkSession, tmp_path: Path) -> None:
    with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "flock") as flock:
        with pytest.raises(DefinitionError, match="host-0 is the last host"):
            flock.drain("host-0")


def _groups(spans: str) -> list[int]:
    ends = [span.split("-") for span in spans.split(", ") if span]
    return [group for first, *last in ends for group in range(int(first), int((last or [first])[0]) + 1)]

"""A checkpoint that a flock has open: refused to others unless they take it over, read by anybody; and slots of two flocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import godwit
from godwit.errors import CheckpointInUse, CheckpointMismatch, DefinitionError, NotEnoughSlots
from godwit.spark.hosts.host_jobs import TASK_ENDED
from tests.spark.flocks import OPERATOR, Count, Kept, KeyCount, assert_exact, drain, reach, start, state_of

COUNTED = KeyCount(1_000, per_batch=200)


def counts(spark: SparkSession, flock: godwit.Flock) -> DataFrame:
    return flock.process(COUNTED.stream(spark), "key", Count(), name=OPERATOR)


def read(spark: SparkSession, checkpoint: Path) -> dict[int, int]:
    return {row["key"]: row["state"]["n"] for row in godwit.read_state(spark, checkpoint, OPERATOR).collect()}


def test_a_second_flock_is_refused_and_the_query_on_the_first_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    sink = Kept()
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit") as flock:
        query = start(counts(spark, flock), sink, tmp_path / "spark")
        reach(query, sink, 2)
        run = query.runId
        with pytest.raises(CheckpointInUse, match=f"in use by application {spark.sparkContext.applicationId}"):
            godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit")
        drain(query)
        assert query.runId == run
        assert_exact(sink.rows(), COUNTED.truth())
        assert state_of(flock) == COUNTED.truth()
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit") as again:
        assert state_of(again) == COUNTED.truth()


def test_a_flock_that_takes_over_ends_the_first(spark: SparkSession, tmp_path: Path) -> None:
    """There are not slots enough for both, and there need not be."""
    sink = Kept()
    first = godwit.Flock(spark, hosts=3, checkpoint=tmp_path / "godwit", recovery="parallel")
    query = start(counts(spark, first), sink, tmp_path / "spark")
    reach(query, sink, 1)
    with godwit.Flock(spark, hosts=3, checkpoint=tmp_path / "godwit", take_over=True) as second:
        with pytest.raises(StreamingQueryException, match="GODWIT-STALE"):
            drain(query)
        (line,) = [line for line in second.history() if line["event"] == "opened"]
        assert line["before"].startswith("taken over from application")
        lost = [line for line in second.history() if str(line.get("noticed")).startswith(TASK_ENDED)]
        assert lost == [], "the first gives nobody the keys of hosts that it has lost to the second"
        sink = Kept()
        query = start(counts(spark, second), sink, tmp_path / "spark")
        drain(query)
        assert state_of(second) == COUNTED.truth()
        first.close()
        assert state_of(second) == COUNTED.truth(), "closing the first changes nothing"
        assert query.isActive, "nor does it stop the query, which is the second's now"


def test_state_is_read_while_a_query_runs_and_the_query_does_not_notice(spark: SparkSession, tmp_path: Path) -> None:
    sink = Kept()
    truth = COUNTED.truth()
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "godwit") as flock:
        query = start(counts(spark, flock), sink, tmp_path / "spark")
        reach(query, sink, 2)
        owner = (tmp_path / "godwit/owner.json").read_bytes()
        while query.isActive and len(sink.by_batch) < 5:
            seen = read(spark, tmp_path / "godwit")
            assert all(0 < count <= truth[key] for key, count in seen.items())
        drain(query)
        assert_exact(sink.rows(), truth)
        assert read(spark, tmp_path / "godwit") == state_of(flock) == truth
        shown, kept = godwit.read_state(spark, tmp_path / "godwit", OPERATOR), flock.state(OPERATOR)
        assert shown.schema == kept.schema
        assert sorted(shown.collect()) == sorted(kept.collect())
        assert (tmp_path / "godwit/owner.json").read_bytes() == owner
        hosts = flock.status()["hosts"].values()
        assert [(host["generation"], host["restarts"]) for host in hosts] == [(1, 0), (1, 0)]
    assert read(spark, tmp_path / "godwit") == truth, "also of a flock that is closed"


def test_what_cannot_be_read_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="is not the checkpoint of a flock"):
        godwit.read_state(spark, tmp_path, OPERATOR)
    with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "godwit") as flock:
        counts(spark, flock)
        flock.process(COUNTED.batch(spark), "key", Count(), name="once")
        with pytest.raises(DefinitionError, match="The operators are: count, once"):
            godwit.read_state(spark, tmp_path / "godwit", "cuont")
        with pytest.raises(DefinitionError, match="ends with the evaluation"):
            godwit.read_state(spark, tmp_path / "godwit", "once")
        assert godwit.read_state(spark, tmp_path / "godwit", OPERATOR).collect() == []


def test_flocks_of_one_application_count_each_others_slots(spark: SparkSession, tmp_path: Path) -> None:
    """The session has six slots."""
    with godwit.Flock(spark, hosts=3, checkpoint=tmp_path / "a") as first:
        said = rf"3 hosts need 4 task slots .* Spark has 6, of which the flock in {tmp_path / 'a'} takes 3\. Use local\[8\]"
        with pytest.raises(NotEnoughSlots, match=said):
            godwit.Flock(spark, hosts=3, checkpoint=tmp_path / "b")
        with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "b"):
            with pytest.raises(NotEnoughSlots, match=rf"4 hosts .* the flock in {tmp_path / 'b'} takes 2"):
                first.scale(4)
        first.scale(4)
        assert len(first.status()["hosts"]) == 4

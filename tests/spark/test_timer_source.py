"""The source of ticks is registered once for each session, however many flocks are opened."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from godwit.spark.define import timer_source


def test_a_second_flock_does_not_replace_the_source(spark: SparkSession) -> None:
    session: Any = spark.newSession()
    manager = session._jsparkSession.sessionState().dataSourceManager()
    assert not manager.dataSourceExists(timer_source.FORMAT)
    timer_source.register(session)
    first = manager.lookupDataSource(timer_source.FORMAT)
    timer_source.register(session)
    assert manager.lookupDataSource(timer_source.FORMAT).equals(first)
    timer_source.register(session.newSession())


def test_a_further_session_has_a_source_of_its_own(spark: SparkSession) -> None:
    """Spark looks into the active session too, and refuses a name that it finds there."""
    timer_source.register(spark)
    further: Any = spark.newSession()
    timer_source.register(further)
    assert further._jsparkSession.sessionState().dataSourceManager().dataSourceExists(timer_source.FORMAT)
    active = SparkSession.getActiveSession()
    assert active is not None
    assert active._jsparkSession.equals(spark._jsparkSession), "as before"  # type: ignore[attr-defined]

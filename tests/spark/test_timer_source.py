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

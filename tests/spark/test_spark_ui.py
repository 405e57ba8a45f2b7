"""What Spark itself shows of a flock: jobs of hosts that explain themselves, operators by name in plans and in progress."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

import godwit
from tests.spark.flocks import OPERATOR, Count, KeyCount, drain, start


def test_jobs_of_hosts_explain_themselves_and_plans_name_operators(spark: SparkSession, tmp_path: Path) -> None:
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    before = store.jobsList(None).size()
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "flock") as flock:
        listed = store.jobsList(None)
        jobs = [listed.apply(at) for at in range(listed.size() - before)]
        described = sorted(job.description().get() for job in jobs if job.status().toString() == "RUNNING")
        assert [text.split(":")[0] for text in described] == ["Godwit host-0", "Godwit host-1"]
        assert all(f"the flock in {tmp_path}/flock. It runs until the flock is closed" in text for text in described)
        counts = flock.process(KeyCount(10).stream(spark), "key", Count(), name=OPERATOR)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            counts.explain()
        assert "MapInArrow godwit:count(" in printed.getvalue()


def test_progress_has_the_rows_of_an_operator_once_however_often_a_batch_is_evaluated(
    spark: SparkSession, tmp_path: Path
) -> None:
    def evaluate_twice(frame: DataFrame, batch: int) -> None:
        frame.collect()
        frame.count()

    with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "one") as one:
        with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "two") as two:
            work = KeyCount(250, per_batch=100)
            counts = one.process(work.stream(spark), "key", Count(), name="shown")
            others = two.process(counts.drop("count"), "key", Count(), name="shown")
            query = start(others, evaluate_twice, tmp_path / "spark")
            drain(query)
            names = ("godwit:shown", f"godwit:shown in {tmp_path}/two")
            seen = [[each["observedMetrics"][name]["output_rows"] for name in names] for each in query.recentProgress]
            times = 1 if pyspark.__version__ >= "4.3" else 2  # Spark 4.2 adds the metrics of both evaluations up
            assert [rows for rows in seen if rows != [0, 0]] == [[n * times] * 2 for n in (100, 100, 50)]

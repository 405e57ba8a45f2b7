"""What Spark itself shows of a flock: jobs of hosts that explain themselves, and operators by name in plans."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import godwit
from tests.spark.flocks import OPERATOR, Count, KeyCount


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

"""What all tests share: a Spark session, made when the first test asks for it, and Hypothesis profiles."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Python workers must run the interpreter that has the package, not whichever `python3` is first on PATH.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# PySpark gives timestamps as naive datetimes of the process's zone; the JVM and the workers inherit this.
os.environ["TZ"] = "UTC"
time.tzset()
# A test is over before the JVM's second compiler has paid for itself: without it Spark takes half of the processor time here.
os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_LAUNCHER_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# "ci" gives the same verdict on every run; `HYPOTHESIS_PROFILE=explore` goes looking for new failures.
slow_is_fine = [HealthCheck.too_slow]
settings.register_profile("ci", derandomize=True, max_examples=50, deadline=None, suppress_health_check=slow_is_fine)
settings.register_profile("explore", max_examples=2000, deadline=None, suppress_health_check=slow_is_fine)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# First, so that `-m "not spark"` already sees the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local session for the whole run. Hosts hold task slots for as long as they live, hence six."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[6]")
        .appName("godwit-tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()

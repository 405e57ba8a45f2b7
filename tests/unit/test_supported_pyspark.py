"""Another version of PySpark is refused with the versions that work; the version at hand is one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import godwit
from godwit.errors import DefinitionError
from godwit.spark.supported_pyspark import SUPPORTED, check_pyspark, check_real_time

REFUSED = (
    r"PySpark {} is installed, and this version of Godwit works with PySpark 4\.2 and 4\.3.*pip install 'pyspark==4\.3"
)


def test_the_installed_version_is_supported() -> None:
    check_pyspark()


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0", "4.3.1.dev0"])
def test_supported_versions(version: str) -> None:
    check_pyspark(version)
    assert version[:3] in SUPPORTED


@pytest.mark.parametrize("version", ["3.5.9", "4.0.1", "4.4.0", "4.20.0", "5.0.0"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(DefinitionError, match=REFUSED.format(version.replace(".", r"\."))):
        check_pyspark(version)


def test_the_error_comes_before_anything_that_the_version_lacks() -> None:
    """`godwit.Flock` is where a user meets it; Spark, which looks for data sources, does not."""
    code = (
        "import pyspark; pyspark.__version__ = '4.0.1'\n"
        "import pyspark_godwit; assert not hasattr(pyspark_godwit, 'DefaultSource')\n"
        "import godwit\n"
        "try: godwit.Flock\nexcept godwit.GodwitError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert "PySpark 4.0.1 is installed" in done.stdout, done.stderr


def test_a_session_of_spark_connect_is_refused_with_the_reason(tmp_path: Path) -> None:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    session = object.__new__(ConnectSession)  # without a server: the class is what counts
    with pytest.raises(DefinitionError, match="not through Spark Connect: hosts are tasks of the application itself"):
        godwit.Flock(session, checkpoint=tmp_path / "flock")  # type: ignore[arg-type]
    assert not (tmp_path / "flock").exists()


def test_real_time_needs_a_spark_that_reads_outputs_while_it_writes() -> None:
    check_real_time("4.3.0")
    check_real_time("4.10.1")
    with pytest.raises(DefinitionError, match=r"PySpark 4\.2\.1 is installed.*real time.*PySpark 4\.3"):
        check_real_time("4.2.1")

"""Runs Apache Spark's own tests of `transformWithState` through Godwit, if asked with keys that move all the time.

    python -m tests.spark_suite GIT_DIR_OF_APACHE_SPARK [--moves live] [--commit HEAD] [pytest arguments]

The tests belong to Spark. They are read from that repository into a directory of their own, and nothing of them is kept.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = "python/pyspark/sql/tests/pandas"
MODULES = ("transform_with_state", "transform_with_state_state_variable")
PLUGIN = "tests.spark_suite.through_flock"
PROTOCOLS = (
    "live",
    "live-unordered",
    "push",
    "fetch",
    "pause",
    "standby",
)  # restart stops the query, which a test owns
SECONDS_MAX = 240  # for one test


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark_suite", description=__doc__)
    parser.add_argument("git_dir", type=Path, help="a git directory of Apache Spark's repository")
    parser.add_argument("--commit", default="HEAD", help="of that repository (HEAD)")
    parser.add_argument("--moves", default="", choices=PROTOCOLS, help="move keys all the time, with this protocol")
    parser.add_argument("--engine", choices=("godwit", "spark"), default="godwit", help="spark: the tests as they are")
    given, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as root:
        suite = _extract(given.git_dir, given.commit, Path(root))
        environment = {"SPARK_SUITE": root, "SPARK_SUITE_MOVES": given.moves, "PYSPARK_PYTHON": sys.executable}
        plugin = ["-p", PLUGIN] if given.engine == "godwit" else ["-p", "tests.spark_suite.sparks_tests"]
        options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", f"--timeout={SECONDS_MAX}", f"--rootdir={root}"]
        return subprocess.call(
            [sys.executable, "-m", "pytest", *options, *plugin, "-c", os.devnull, str(suite), *more],
            env={**os.environ, **environment},
        )


def _extract(git_dir: Path, commit: str, root: Path) -> Path:
    archive = subprocess.run(
        ["git", "-C", str(git_dir), "archive", commit, FOLDER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    subprocess.run(["tar", "-x", "-C", str(root), "--strip-components=1"], input=archive.stdout, check=True)
    for package in ("tests", "tests/pandas", "tests/pandas/helper", "tests/pandas/streaming"):
        (root / "pyspark" / "sql" / package / "__init__.py").touch()
    suite = root / "suite_test.py"
    suite.write_text("\n".join(_imports()))
    return suite


def _imports() -> list[str]:
    """Each module has a variant with Rows and one with pandas, which have the same tests."""
    lines = []
    for module in MODULES:
        words = "StateVariable" if module.endswith("variable") else ""
        for prefix, flavour in (("", "InPySpark"), ("pandas_", "InPandas")):
            name = f"TransformWithState{flavour}{words}Tests"
            lines.append(f"from pyspark.sql.tests.pandas.streaming.test_{prefix}{module} import {name}  # noqa")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())

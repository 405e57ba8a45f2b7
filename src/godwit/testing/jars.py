"""Jars from Maven's repository, found and fetched by Spark's own resolver: PySpark and Java are enough.

Decides where fetched jars are stored, so that they are fetched once: below `GODWIT_CACHE`, or `~/.cache/godwit`. Several
processes may ask at the same time: one of them fetches, and the others wait for it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark

from godwit.errors import DefinitionError

SPARK_HOME: Final = Path(pyspark.__file__).parent
ATTEMPTS_MAX: Final = 4  # a download may break off; what was fetched before is not fetched again
_TAIL: Final = 2_000  # characters of the resolver's last words in an error


def cache() -> Path:
    return Path(os.environ.get("GODWIT_CACHE") or Path.home() / ".cache" / "godwit")


def fetched(packages: Sequence[str], excluded: Sequence[str] = ()) -> list[Path]:
    """The jars of these packages (`group:artifact:version`) and of what they need, in this order; `excluded`: without these."""
    home = cache() / "_".join(package.replace(":", "-") for package in packages)
    stamp = home / "fetched"
    if not stamp.exists():
        home.mkdir(parents=True, exist_ok=True)
        with (home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, however this ends
            if not stamp.exists():
                _fetch(home, packages, excluded)
                stamp.touch()
    return sorted((home / "jars").glob("*.jar"))


def _fetch(home: Path, packages: Sequence[str], excluded: Sequence[str]) -> None:
    words = ""
    for _ in range(ATTEMPTS_MAX):
        done = _resolve(home, packages, excluded)
        if not done.returncode:
            return
        words = done.stdout + done.stderr
        if "download failed" not in words:
            break
    raise DefinitionError(
        f"{', '.join(packages)} could not be fetched:\n{words[-_TAIL:]}",
        todo="See that Spark's resolver reaches Maven's repository; spark.jars.ivySettings names another one",
    )


def _resolve(home: Path, packages: Sequence[str], excluded: Sequence[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[1]", "--conf", f"spark.jars.ivy={home}"]
        command += ["--packages", ",".join(packages)]
        command += ["--exclude-packages", ",".join(excluded)] if excluded else []
        interpreter = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment = {**os.environ, **interpreter, "SPARK_HOME": str(SPARK_HOME)}
        return subprocess.run([*command, program.name], capture_output=True, text=True, env=environment, check=False)

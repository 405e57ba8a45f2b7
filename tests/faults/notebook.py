"""A notebook without a browser: a process that runs cells in one namespace, and goes on after one is interrupted or fails.

Run as `python -m tests.faults.notebook`: cells come on stdin and answers leave on stdout, a line of JSON each. An answer has
the value of the name `answer`, and the error if there was one. `warnings` is a list of what was logged as a warning.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Self

import pyspark

ROOT = Path(__file__).parents[2]
SET_UP = """
import time
from pathlib import Path
from pyspark.sql import SparkSession
import godwit
from tests.spark.flocks import Count, Files, KeyCount, assert_exact, drain, start, state_of, wait_until
root = Path(FOLDER)
spark = (SparkSession.builder.master("local[6]").config("spark.ui.enabled", False)
    .config("spark.ui.showConsoleProgress", False).config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", 2)
    .config("spark.sql.warehouse.dir", str(root / "warehouse")).getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
"""


class Notebook:
    """The process, from outside."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "notebook.log"
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "GODWIT_TEST_FOLDER": str(folder),
        }
        command, pipe = [sys.executable, "-m", "tests.faults.notebook"], subprocess.PIPE
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=env)
        self.run(f"FOLDER = {str(folder)!r}\n{SET_UP}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:  # closes the pipes
            self.process.kill()

    def begin(self, cell: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(textwrap.dedent(cell)).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-5000:]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, cell: str) -> Any:
        """The value of `answer` after the cell, which must not fail."""
        self.begin(cell)
        answer = self.answer()
        assert answer["error"] is None, answer["error"] + self.log.read_text()[-5000:]
        return answer["value"]

    def interrupt(self) -> dict[str, Any]:
        """Press the stop button. The answer of the cell that was running."""
        self.process.send_signal(signal.SIGINT)
        return self.answer()

    def leave(self) -> int:
        """Close the notebook as its end of input does; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(120)


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what cells, Spark and hosts print goes to the log
    warnings = _Warnings()
    logging.getLogger("godwit").addHandler(warnings)
    namespace: dict[str, Any] = {"warnings": warnings.lines}
    for line in sys.stdin:
        error = None
        namespace["answer"] = None
        try:
            exec(json.loads(line), namespace)
        except KeyboardInterrupt:
            error = "KeyboardInterrupt"
        except Exception as failure:  # noqa: BLE001 as a notebook does
            error = f"{type(failure).__name__}: {failure}"
        answers.write(json.dumps({"value": namespace["answer"], "error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

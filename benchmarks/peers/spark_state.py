"""Spark's own state, in a process of its own: the run needs a session with other settings than ours, and must leave nothing.

This module starts the process and reads from it; `spark_query` runs there. The process writes one JSON object a line: first its
progress, at last its figures.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import prepare
from benchmarks.peers.failed import PeerFailed
from benchmarks.peers.peer_settings import PeerSettings
from benchmarks.running.watch import Watch

MODULE: Final = "benchmarks.peers.spark_query"
TAIL_BYTES: Final = 3_000


def measure(settings: PeerSettings, watch: Watch) -> dict[str, Any]:
    """All figures of one run."""
    settings = settings.checked()
    prepare.require("spark")
    watch.phase("starting Spark")
    with tempfile.TemporaryDirectory(prefix="godwit-spark-", ignore_cleanup_errors=True) as directory:
        errors = Path(directory) / "errors"
        command = [sys.executable, "-m", MODULE, json.dumps(asdict(settings)), directory]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(prepare.java_home())}
        with (
            errors.open("wb") as error_file,
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=error_file, text=True, start_new_session=True
            ) as process,
        ):
            try:
                figures = _listen(process, watch)
            finally:
                with suppress(ProcessLookupError):  # the JVM is in the same session
                    os.killpg(process.pid, signal.SIGKILL)
        if figures is None:
            raise PeerFailed(
                f"Spark's run gave no figures: {errors.read_bytes()[-TAIL_BYTES:].decode(errors='replace')}"
            )
        return figures


def _listen(process: subprocess.Popen[str], watch: Watch) -> dict[str, Any] | None:
    """Until the figures come, or the process ends without."""
    assert process.stdout is not None
    for line in process.stdout:
        figures = figures_in(line, watch)
        if figures is not None:
            return figures
    return None


def figures_in(line: str, watch: Watch) -> dict[str, Any] | None:
    """The figures, if it is the line with them; progress goes to the watch, what others write there is passed over."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    match message:
        case {"phase": str(text)}:
            watch.phase(text)
        case {"rows": [int(seen), int(total)]}:
            watch.rows(seen, total)
        case {"figures": dict(figures)}:
            return figures
    return None

"""Where results are stored, and what every line of them says about its run: commit, versions, machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "benchmarks/results"
LIBRARIES: Final = ("godwit", "pyspark", "pyarrow", "numpy")


def commit() -> str:
    """What is checked out, with + when the sources differ from it; GODWIT_COMMIT says it where there is no repository."""
    given = os.environ.get("GODWIT_COMMIT")
    if given:
        return given
    try:
        head = _git("rev-parse", "--short", "HEAD")
        differs = _git("diff", "--quiet", "HEAD", "--", "src").returncode
    except OSError:
        return "unknown"
    return (head.stdout.strip() + ("+" if differs else "")) if not head.returncode else "unknown"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), "--no-optional-locks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def machine() -> dict[str, Any]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory_bytes / 2**30),
        "system": platform.system(),
        "load": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def circumstances(benchmark: str, run: str) -> dict[str, Any]:
    """What every line of results begins with."""
    return {
        "benchmark": benchmark,
        "run": run,
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
    }


def run_id() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def keep(name: str, line: dict[str, Any]) -> Path:
    """Append a line to the results of a benchmark."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return path


def every(name: str) -> list[dict[str, Any]]:
    """All lines of a file of results, oldest first."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def newest(name: str, benchmark: str | None = None) -> list[dict[str, Any]]:
    """The lines of the last run in a file of results; of one benchmark only, where the file has several."""
    mine = [line for line in every(name) if benchmark is None or line["benchmark"] == benchmark]
    return [line for line in mine if line["run"] == mine[-1]["run"]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

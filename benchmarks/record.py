"""Where results go: JSON lines that name the commit and the machine they were measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def commit() -> str:
    """The commit that is checked out, with + when files differ from it."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    dirty = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src"], capture_output=True, check=False)
    return (head.stdout.strip() or "unknown") + ("+" if dirty.returncode else "")


def machine() -> dict[str, Any]:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": model, "cores": os.cpu_count(), "memory_gb": round(memory_gb), "python": platform.python_version()}


def keep(name: str, run: str, rows: list[dict[str, Any]]) -> Path:
    """Append the rows of one run to the results of a benchmark."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    frame = {"run": run, "commit": commit(), "machine": machine(), "load": os.getloadavg()[0]}
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps(frame | row) + "\n")
    return path


def newest(name: str) -> list[dict[str, Any]]:
    """The rows of the last run of a benchmark."""
    path = RESULTS / f"{name}.jsonl"
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row["run"] == rows[-1]["run"]]


def run_id() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

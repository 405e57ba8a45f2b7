"""Where results go: JSON lines that name the commit and the machine they were measured on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from godwit.bench.record import commit, machine, run_id, versions

__all__ = ["RESULTS", "keep", "newest", "run_id", "say"]

RESULTS = Path(__file__).parent / "results"


def keep(name: str, run: str, rows: list[dict[str, Any]]) -> Path:
    """Append the rows of one run to the results of a benchmark."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    frame = {"run": run, "commit": commit(), "versions": versions(), "machine": machine()}
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


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

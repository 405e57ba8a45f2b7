"""Two commits of Godwit under the same load, in one run: what a change costs or gains in rows a second.

Each pair measures both commits one after the other, in processes of their own (`one_side`), and the order changes from pair to
pair, so that drift of the machine hits both. The benchmark is that of this tree; only the `godwit` that it imports differs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.running.record import ROOT, circumstances, keep, run_id, say


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="godwit-compare-", ignore_cleanup_errors=True) as directory:
        tree = Path(directory) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", tree, revision], cwd=ROOT, check=True, capture_output=True
        )
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def run_side(tree: Path, batches: int) -> list[dict[str, Any]]:
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "benchmarks.key_count.one_side", str(batches)]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE)
    lines: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return lines


def compare(base: str, pairs: int, batches: int) -> None:
    run = run_id()
    ratios: dict[tuple[str, int], list[float]] = {}
    with checked_out(base) as tree:
        for pair in range(pairs):
            sides = {"base": tree, "here": ROOT}
            order = list(sides) if pair % 2 == 0 else list(reversed(sides))
            lines = {side: run_side(sides[side], batches) for side in order}
            for before, after in zip(lines["base"], lines["here"], strict=True):
                ratio = after["rows_per_second"] / before["rows_per_second"]
                ratios.setdefault((before["way"], before["batch_rows"]), []).append(ratio)
                line = {"base": base, "pair": pair, "before": before, "after": after, "ratio": ratio}
                keep("compare", circumstances("compare", run) | line)
                say(f"pair {pair + 1} of {pairs}, {before['way']}, {before['batch_rows']} rows: {ratio:.3f}")
    for (way, size), values in ratios.items():
        say(
            f"{way}, {size} rows a batch: {statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f}) of {base}"
        )

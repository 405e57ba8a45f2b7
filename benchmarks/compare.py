"""Two commits of Godwit under the same load, in one run: what a change costs or gains in rows a second.

Each pair measures both commits one after the other, in processes of their own, and the order changes from pair to pair, so that
drift of the machine hits both alike. Each is measured by the throughput benchmark that it has itself.
"""

from __future__ import annotations

import argparse
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

from benchmarks.record import keep, run_id, say

ROOT = Path(__file__).parents[1]
SIZES = (500, 100_000)
WAYS = ("godwit-unchanged", "godwit-native")


def measure_one_side(batches: int) -> list[dict[str, Any]]:
    """Every way and size once, with whichever `godwit` and `benchmarks` this process imports."""
    import godwit
    from benchmarks.session import session
    from benchmarks.throughput import WAYS as ALL_WAYS
    from benchmarks.throughput import measure

    spark = session(4)
    rows = []
    with tempfile.TemporaryDirectory(prefix="godwit-bench-", ignore_cleanup_errors=True) as directory:
        with godwit.Flock(spark, hosts=2, checkpoint=directory) as flock:
            for way in (way for way in ALL_WAYS if way.name in WAYS):
                for size in SIZES:
                    count = batches if (way.name, size) != ("godwit-unchanged", 100_000) else max(6, batches // 3)
                    rows.append(measure(spark, flock, way, size, count, f"{way.name}-{size}"))
    spark.stop()
    return rows


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
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}:{tree}"}
    command = [sys.executable, __file__, "--one-side", "--batches", str(batches)]
    done = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(base: str, pairs: int, batches: int) -> None:
    run = run_id()
    ratios: dict[tuple[str, int], list[float]] = {}
    with checked_out(base) as tree:
        for pair in range(pairs):
            sides = {"base": tree, "here": ROOT}
            order = list(sides) if pair % 2 == 0 else list(reversed(sides))
            found = {side: run_side(sides[side], batches) for side in order}
            for before, after in zip(found["base"], found["here"], strict=True):
                ratio = after["rows_per_second"] / before["rows_per_second"]
                ratios.setdefault((before["way"], before["batch_rows"]), []).append(ratio)
                line = {"base": base, "pair": pair, "before": before, "after": after, "ratio": ratio}
                keep("compare", run, [line])
                say(f"pair {pair + 1} of {pairs}, {before['way']}, {before['batch_rows']} rows: {ratio:.3f}")
    for (way, size), values in ratios.items():
        say(
            f"{way}, {size} rows a batch: {statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f}) of {base}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with (default HEAD~1)")
    parser.add_argument("--pairs", type=int, default=5, help="how often both are measured (default 5)")
    parser.add_argument("--batches", type=int, default=24, help="batches measured each time (default 24)")
    parser.add_argument("--one-side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_side:
        print(json.dumps(measure_one_side(options.batches)))
    else:
        compare(options.base, options.pairs, options.batches)


if __name__ == "__main__":
    main()

"""One side of a comparison of two commits: measured with the `godwit` that this process imports, printed as JSON.

It must import nothing of Godwit but the public API, since the other side is an older or newer `godwit`.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import godwit
from benchmarks.key_count.ways import WAYS, measure
from benchmarks.running.scratch import scratch
from benchmarks.running.session import session

SIZES: Final = (500, 100_000)
COMPARED: Final = ("godwit-unchanged", "godwit-native")


def measure_all(batches: int) -> list[dict[str, Any]]:
    """Every way and size once."""
    spark = session(4)
    rows = []
    with scratch() as directory, godwit.Flock(spark, hosts=2, checkpoint=directory) as flock:
        for way in (way for way in WAYS if way.name in COMPARED):
            for size in SIZES:
                slow = (way.name, size) == ("godwit-unchanged", 100_000)
                count = max(6, batches // 3) if slow else batches
                rows.append(measure(spark, flock, way, size, count, f"{way.name}-{size}"))
    spark.stop()
    return rows


if __name__ == "__main__":
    print(json.dumps(measure_all(int(sys.argv[1]))))

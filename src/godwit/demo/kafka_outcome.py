"""Whether the results in the topic are right: one for each report, in order, and as a Spark batch over the reports has them.

A result is recognised by the partition and offset of its report. Spark's Kafka sink writes at least once: if a batch has to be
repeated, its results come again. A repeat with the same values is counted apart, because a reader skips it by its identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

REPEATED: Final = "repeated by the sink, equal"
TOLERANCE: Final = 1e-9  # of an average: Spark adds in another order

Identity = tuple[int, int]  # partition and offset of the report
Result = Mapping[str, Any]  # car, n, mean, partition, offset


def truth(reports: DataFrame) -> dict[Identity, tuple[str, int, float]]:
    """Car, number of its reports so far and their average, for every report: computed by Spark, as a batch."""
    order = Window.partitionBy("car").orderBy("partition", "offset")
    rows = reports.select(
        "partition",
        "offset",
        "car",
        sf.row_number().over(order).alias("n"),
        sf.avg("speed").over(order).alias("mean"),
    ).toArrow()
    return {(row["partition"], row["offset"]): (row["car"], row["n"], row["mean"]) for row in rows.to_pylist()}


def verdict(results: Iterable[Result], expected: Mapping[Identity, tuple[str, int, float]]) -> dict[str, int]:
    """What a reader finds who takes the first result of each report. All but the repeats must be 0."""
    first: dict[Identity, tuple[str, int, float]] = {}
    last: dict[str, int] = {}
    found = dict.fromkeys(("lost", "doubled", "out of order", "wrong", REPEATED), 0)
    for row in results:
        identity, result = (row["partition"], row["offset"]), (row["car"], row["n"], row["mean"])
        if identity in first:
            found[REPEATED if first[identity] == result else "doubled"] += 1
            continue
        first[identity] = result
        found["out of order"] += result[1] < last.get(result[0], 0)
        found["wrong"] += identity not in expected or not _same(result, expected[identity])
        last[result[0]] = result[1]
    found["lost"] = len(expected.keys() - first.keys())
    return found


def exact(found: Mapping[str, int]) -> bool:
    return not any(count for name, count in found.items() if name != REPEATED)


def _same(result: tuple[str, int, float], expected: tuple[str, int, float]) -> bool:
    return result[:2] == expected[:2] and abs(result[2] - expected[2]) <= TOLERANCE * abs(expected[2])

"""What every workload of the benchmarks has: the options of its rows, a query over them, and a check of all its outputs.

The check runs in this process from the workload's definition, without Spark and without hosts: it computes row by row what a
run should have given, so it is the same with and without a reconfiguration. It must not know what was moved, or when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from benchmarks.running.measures import counted, wrong_keys
from benchmarks.running.settings import Settings
from benchmarks.workloads.tally import ballast, digest
from godwit.testing.latency import Numbers
from godwit.workload import Shape, Workload
from godwit.workload.numbered_rows import keys_of

NAME: Final = "tally"  # of the operator, whatever it computes
LANES: Final = 2
Mask = npt.NDArray[np.bool_]


class Computation(ABC):
    """One workload as a run uses it."""

    shape: Shape  # of the rows

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def options(self) -> dict[str, Any]:
        """Of the source; rate and end of the load are added by whoever runs it."""
        settings = self.settings
        return {
            "workload": self.shape,
            "keys": settings.keys,
            "skew": settings.skew,
            "lanes": LANES,
            "seed": settings.seed,
        }

    @abstractmethod
    def operated(self, spark: SparkSession, flock: godwit.Flock, rows: DataFrame) -> DataFrame:
        """The operator `NAME` over rows of the source. Its output has the key, and `due`: when the row was that caused it."""

    @abstractmethod
    def output_count(self, workload: Workload) -> int:
        """How many output rows all rows of the workload give."""

    def exactness(self, workload: Workload, outputs: pa.Table, state: DataFrame) -> dict[str, int]:
        """What is wrong with the output rows, in the order in which they came, and with the state at the end.

        All are 0 in a good run: lost, duplicated, out_of_order, wrong_outputs, wrong_state (keys). An output row with a wrong
        value is not the one that should have come: it counts as lost, and as one in excess.
        """
        wrong = wrong_keys(self.stored(state), self.expected(workload, outputs))
        return {**self.judged(workload, outputs), "wrong_state": wrong}

    @abstractmethod
    def judged(self, workload: Workload, outputs: pa.Table) -> dict[str, int]:
        """What is wrong with the output rows."""

    @abstractmethod
    def expected(self, workload: Workload, outputs: pa.Table) -> dict[int, Any]:
        """What the state of each key should be; outputs tell no more than when the load began."""

    @abstractmethod
    def stored(self, state: DataFrame) -> list[tuple[int, Any]]:
        """What it is."""

    # -- for those who implement it ----------------------------------------------------------------------------------

    def initial(self, spark: SparkSession, key: Column, name: str) -> DataFrame:
        """All keys: they have their state before the first row."""
        return spark.range(self.settings.keys).select(key.alias(name))

    def digest_of(self, key: int) -> int | None:
        """Of the value that makes a key's state as large as wanted."""
        size = self.settings.state_bytes
        return digest(ballast(key, size)) if size else None

    def digests(self) -> Column:
        """The same in a DataFrame of state."""
        return (sf.xxhash64("ballast.bytes") if self.settings.state_bytes else sf.lit(None)).alias("digest")


def drawn_keys(workload: Workload) -> Numbers:
    return keys_of(workload, all_numbers(workload))


def all_numbers(workload: Workload) -> Numbers:
    assert workload.rows is not None, "a load that ends"
    return np.arange(workload.rows, dtype=np.int64)


def rows_by_key(workload: Workload) -> Numbers:
    return np.bincount(drawn_keys(workload), minlength=workload.keys).astype(np.int64)


def valued(keys: Numbers, counts: Numbers, right: Mask, expected: Numbers) -> dict[str, int]:
    """As `counted`, where an output row must also be `right`: 0 is a count that no row can have given."""
    order = counted(keys, counts, expected)["out_of_order"]
    judged = counted(keys, np.where(right, counts, 0), expected)
    return {**judged, "out_of_order": order, "wrong_outputs": int((~right).sum())}


def numbers_in(texts: pa.ChunkedArray[Any]) -> Numbers:
    """The numbers in texts of a letter and a number."""
    digits: Any = pc.utf8_slice_codeunits(texts, 1)
    numbers: Numbers = digits.cast(pa.int64()).to_numpy()
    return numbers

"""A PySpark processor gives through Godwit what it gives through Spark: state, keys, types, initial state, batch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import godwit
from tests.spark import processors
from tests.spark.processors import FLAVOURS, SCRIPT, Flavour, flavoured
from tests.spark.side_by_side import Case, SideBySide, Table

VALUES = pa.schema({"id": pa.string(), "value": pa.float64(), "word": pa.string()})
BATCHES: list[Table] = [
    [("a", 1.0, "x"), ("b", 150.0, "y"), ("a", 101.5, "x"), ("c", None, "z")],
    [("b", 2.0, "y"), ("b", 300.0, None), ("a", 7.0, "q")],
    [("d", 5.5, "x"), ("a", 200.0, "x"), ("a", 3.0, "y"), ("a", 4.0, "y"), ("b", None, "w"), ("a", 0.5, "z")],
    [("a", 104.0, "last"), ("d", None, "x")],
]
FULL: list[Table] = [[row for row in batch if row[1] is not None] for batch in BATCHES]


@pytest.fixture(scope="module")
def engines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide]:
    root = tmp_path_factory.mktemp("equivalence")
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        yield SideBySide(spark, flock, root)


def case(kind: type[processors.Logic], flavour: Flavour, **more: Any) -> Case:
    settings = more.pop("settings", {})
    return Case(flavoured(kind, flavour, **settings), kind.OUTPUT, pandas=flavour == "pandas", **more)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    ("kind", "batches", "mode"),
    [
        (processors.RunningCount, FULL, "append"),
        (processors.Violations, BATCHES, "update"),
        (processors.TopThree, FULL, "append"),
        (processors.RecentAndWords, FULL, "update"),
    ],
)
def test_documented_processors_give_the_same_rows_in_every_batch(
    engines: SideBySide, kind: type[processors.Logic], batches: list[Table], mode: str, flavour: Flavour
) -> None:
    expected, given = engines.both(case(kind, flavour, mode=mode), VALUES, batches)
    assert expected.by_batch()
    assert given.by_batch() == expected.by_batch()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_state_method_answers_alike(engines: SideBySide, flavour: Flavour) -> None:
    schema = pa.schema({"id": pa.string(), "op": pa.string(), "word": pa.string(), "n": pa.int64()})
    words = ["u", "v", "u", "w", "uv"]
    first = [("a", op, words[i % 5], None if i % 7 == 0 else i) for i, op in enumerate(SCRIPT)]
    second = [("a", op, words[i % 3], i) for i, op in enumerate(SCRIPT)]
    other = [("b", op, words[i % 2], -i) for i, op in enumerate(reversed(SCRIPT))]
    expected, given = engines.both(case(processors.Scripted, flavour), schema, [first, other, [*second, *other[:20]]])
    assert sum(map(len, expected.by_key().values())) == 3 * len(SCRIPT) + 20
    assert given.by_batch() == expected.by_batch()

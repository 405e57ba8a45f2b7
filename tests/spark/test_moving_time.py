"""Timers, watermarks, times to live and open windows move with their keys: everything falls due when it would have.

The same batches twice: once with nothing moved, once with groups that go to and fro after every batch, to a host that joins on
the way, and while the next batch is being processed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import godwit
from godwit.windows import EventSliding
from tests.spark import processors
from tests.spark.processors import flavoured
from tests.spark.side_by_side import Case, Feed, Seen, SideBySide
from tests.spark.test_time import EVENTS, MEASURED, MEASURES, SESSIONS, Table

SUMS = {"n": "count", "total": ("sum", "value"), "most": ("max", "value")}
Define = Callable[[godwit.Flock, DataFrame, str], DataFrame]


def sessions(flock: godwit.Flock, frame: DataFrame, name: str) -> DataFrame:
    """Timers by event time that set further timers."""
    logic = processors.Session
    case = Case(flavoured(logic, "row"), logic.OUTPUT, time="eventTime", watermark=("at", "10 seconds"))
    return case.on_flock(flock, frame, name)


def windows(flock: godwit.Flock, frame: DataFrame, name: str) -> DataFrame:
    marked = frame.withWatermark("at", "5 seconds")
    return flock.process(
        marked, "id", EventSliding("20 seconds", "5 seconds", "at", SUMS), timeMode="eventTime", name=name
    )


@pytest.fixture
def engines(spark: SparkSession, tmp_path: Path) -> Iterator[SideBySide]:
    with godwit.Flock(spark, hosts=2, checkpoint=tmp_path / "flock", groups=16) as flock:
        yield SideBySide(spark, flock, tmp_path)


def run(
    engines: SideBySide, define: Define, schema: Any, batches: list[Table], moves: Callable[[str, int], None]
) -> Seen:
    feed: Feed = engines.feed(schema)
    name = engines.name()
    frame = define(engines.flock, feed.stream(engines.spark), name)
    with engines.running(frame) as (query, seen):
        for at, rows in enumerate(batches):
            feed.add(rows)
            moves(name, at)
            query.processAllAvailable()
    return seen


@pytest.mark.parametrize("protocol", ["live", *(pytest.param(p, marks=pytest.mark.long) for p in ("push", "pause"))])
@pytest.mark.parametrize(
    ("define", "schema", "batches"),
    [(sessions, EVENTS, SESSIONS), pytest.param(windows, MEASURED, MEASURES, marks=pytest.mark.long)],
    ids=["timers", "windows"],
)
def test_everything_falls_due_as_if_nothing_had_moved(
    engines: SideBySide, protocol: str, define: Define, schema: Any, batches: list[Table]
) -> None:
    expected = run(engines, define, schema, batches, lambda _name, _at: None)
    flock = engines.flock

    def moves(name: str, at: int) -> None:
        """While the batch is being processed, or before it begins: whichever comes first."""
        if at == 2:
            flock.scale(3, protocol=protocol, progress=False)
            return
        groups = [g for g in range(16) if g % 3 != at % 3]
        hosts = sorted(flock.status()["hosts"])
        to = hosts[(at + 1) % len(hosts)]
        owned = {row["host"]: row["groups"] for row in flock.routing(name)}
        mine = members(owned.get(to, ""))
        rest = [g for g in groups if g not in mine]
        if rest:
            flock.move(name, groups=rest, to=to, protocol=protocol, progress=False)

    given = run(engines, define, schema, batches, moves)
    assert given.by_key() == expected.by_key()
    assert len(expected.rows) > 5


def members(spans: str) -> set[int]:
    """'0-3, 7' as numbers."""
    found: set[int] = set()
    for part in filter(None, (piece.strip() for piece in spans.split(","))):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found

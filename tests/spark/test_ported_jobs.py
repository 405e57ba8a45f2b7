"""Whole jobs of PySpark, unchanged: the same outputs in every batch as in Spark, and the same state and timers at the end.

Rows of a key come in several input partitions. A selection runs also while keys move and hosts are lost.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from godwit.errors import GodwitError
from tests.spark import ported_jobs as jobs
from tests.spark.flocks import kill_host
from tests.spark.side_by_side import Case, Feed, Seen, SideBySide, Table
from tests.spark_suite.moving import Moving

INSTANT = pa.timestamp("us", tz="UTC")
START = dt.datetime(2024, 3, 1, 12)
FILES = 2


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


@dataclass(frozen=True)
class Ported:
    """A job with its input.

    shaped: what becomes of the stream before it is grouped. width: of the key in the output. late_timers: timers set timers
    that are due already.
    """

    job: type[jobs.Job]
    schema: dict[str, Any]
    batches: list[Table]
    keys: tuple[str, ...] = ("id",)
    time: str = "none"
    delay: str = ""
    pandas: bool = False
    mode: str = "append"
    shaped: Callable[[DataFrame], DataFrame] = lambda frame: frame
    width: int = 1
    late_timers: bool = False

    @property
    def case(self) -> Case:
        watermark = ("at", self.delay) if self.delay else None
        words = {"keys": self.keys, "pandas": self.pandas, "mode": self.mode, "time": self.time, "watermark": watermark}
        return Case(self.job(), self.job.OUTPUT, **words)


def united(frame: DataFrame) -> DataFrame:
    orders = frame.where("side = 'order'").select("id", "side", "amount", sf.lit(None).cast("string").alias("by"), "at")
    payments = frame.where("side = 'paid'").select(
        "id", "side", sf.lit(None).cast("double").alias("amount"), "by", "at"
    )
    return orders.union(payments)


PHONE, OTHER = {"os": "x", "version": Decimal("1.5")}, {"os": None, "version": Decimal("0.1")}
SESSIONS = Ported(
    jobs.Sessions,
    {
        "url": pa.string(),
        "user": pa.string(),
        "at": INSTANT,
        "device": pa.struct({"os": pa.string(), "version": pa.decimal128(5, 1)}),
    },
    [
        [("a", "ann", at(0), PHONE), ("b", "ann", at(4), PHONE), ("a", "bob", at(1), None), ("c", None, at(2), OTHER)],
        [("d", "ann", at(13), PHONE), ("d", "ann", at(13), OTHER), ("z", "bob", at(30), None)],
        [("late", "ann", at(2), PHONE), ("e", "ann", at(26), PHONE)],
        [],
        [("f", "zed", at(100), None)],
    ],
    keys=("user", "device"),
    width=2,
    time="eventTime",
    delay="5 seconds",
)
MATCHES = Ported(
    jobs.Matches,
    {"id": pa.int64(), "side": pa.string(), "amount": pa.float64(), "by": pa.string(), "at": INSTANT},
    [
        [(1, "order", 5.0, None, at(0)), (1, "paid", None, "p1", at(1)), (2, "paid", None, "p2", at(1))],
        [(1, "paid", None, "p3", at(5)), (2, "order", 7.5, None, at(9)), (None, "order", 1.0, None, at(6))],
        [(3, "order", 1.0, None, at(40)), (None, "paid", None, None, at(41))],
        [(1, "order", 8.0, None, at(41)), (2, "paid", None, "p9", at(60))],
        [(9, "order", 0.0, None, at(500))],
    ],
    time="EventTime",
    delay="3 seconds",
    shaped=united,
)
LEAP, OLD = dt.date(2024, 2, 29), dt.date(1900, 1, 1)
SCORES = Ported(
    jobs.TopScores,
    {
        "score": pa.decimal128(10, 3),
        "game": pa.bool_(),
        "tags": pa.list_(pa.string()),
        "day": pa.date32(),
        "attrs": pa.map_(pa.string(), pa.float64()),
        "raw": pa.binary(),
        "what": pa.string(),
    },
    [
        [
            (Decimal(n), n % 2 == 0, [str(n), None], LEAP, [("a", n / 2), ("b", None)], bytes([n]), "")
            for n in range(10)
        ],
        [(Decimal(99), True, [], LEAP, [], b"", ""), (Decimal(1), None, ["x"], None, None, None, "")],
        [(Decimal(1), True, [], OLD, None, None, ""), (Decimal(5), True, ["c"], LEAP, None, b"z", "forget")],
        [(Decimal("0.001"), False, None, LEAP, None, None, ""), (Decimal(1), None, None, None, None, None, "")],
    ],
    keys=("day", "game"),
    width=2,
    mode="Update",
)
TIMED: dict[str, Any] = {"id": pa.string(), "at": INSTANT}
WINDOWS = Ported(
    jobs.WindowTotals,
    TIMED,
    [
        [("a", at(1)), ("a", at(2)), ("a", at(11)), (None, at(12))],
        [("a", at(14)), ("b", at(40))],
        [("b", at(41)), ("a", at(3))],
        [("c", at(100))],
    ],
    keys=("id", "window"),
    width=2,
    time="eventTime",
    delay="1 second",
    shaped=lambda frame: frame.withColumn("window", sf.window("at", "10 seconds")),
)
TIMERS = Ported(
    jobs.TimersOfTimers,
    TIMED,
    [
        [("a", at(0)), ("b", at(1)), ("a", at(0.5))],
        [("c", at(30))],
        [("d", at(31))],
        [("d", at(95)), ("a", at(95))],
        [("e", at(200))],
        [("e", at(400))],
        [("f", at(401))],
    ],
    time="eventTime",
    delay="1 second",
    late_timers=True,
)
CHANGED = Ported(
    jobs.ChangedWhileRead,
    {"id": pa.string(), "n": pa.int32()},
    [[("a", n) for n in range(7)] + [("b", 3)], [("a", n) for n in range(3)]],
)
DAY = dt.date(2024, 1, 1)
FRAMES = Ported(
    jobs.PandasSessions,
    {"sum": pa.decimal128(6, 2), "day": pa.date32(), "flag": pa.bool_(), "at": INSTANT, "v": pa.float64()},
    [
        [(Decimal("1.10"), DAY, True, at(n), n) for n in range(3)] + [(Decimal(2), DAY, False, at(1), 1.5)],
        [(Decimal("1.1"), DAY, True, at(9), 1.0), (Decimal(5), DAY, True, at(15), 1.0)],
        [(Decimal("1.1"), DAY, True, at(9), 1.0), (Decimal(3), DAY, False, at(200), 1.0)],
        [(Decimal(3), DAY, False, at(201), None)],
    ],
    keys=("day", "flag", "sum"),
    time="eventTime",
    delay="2 seconds",
    pandas=True,
    late_timers=True,
)
PURCHASES = Ported(
    jobs.Purchases,
    {"card": pa.int64(), "amount": pa.decimal128(10, 2), "at": INSTANT, "shop": pa.string(), "land": pa.string()},
    [
        [(1, Decimal("0.50"), at(0), "s1", "DE"), (1, Decimal(900), at(20), "s2", None)],
        [
            (2, Decimal("0.99"), at(0), "s1", "FR"),
            (2, Decimal(501), at(59), "s1", "FR"),
            (2, Decimal(501), at(60), "s3", "FR"),
        ],
        [(1, Decimal("0.01"), at(61), "s1", "DE"), (1, Decimal(600), at(61 + 86_400), "s1", "DE")],
    ],
    keys=("card",),
    mode="update",
)
ALL = {
    "sessions": SESSIONS,
    "matches": MATCHES,
    "scores": SCORES,
    "windows": WINDOWS,
    "timers": TIMERS,
    "changed": CHANGED,
    "frames": FRAMES,
    "purchases": PURCHASES,
}
QUICK = ("sessions", "frames")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the flock."""
    return tmp_path_factory.mktemp("ported") / "flock"


@pytest.fixture(scope="module")
def engines(spark: SparkSession, checkpoint: Path) -> Iterator[SideBySide]:
    with godwit.Flock(spark, hosts=2, checkpoint=checkpoint) as flock:
        yield SideBySide(spark, flock, checkpoint.parent)


def batch_by_batch(
    ported: Ported, frame: DataFrame, feed: Feed, checkpoint: Path, between: Callable[[int], None] | None = None
) -> Seen:
    """Each batch with those that it leads to, before the next one comes.

    between: each batch is evaluated twice, and this is called with its number after the first evaluation.
    """
    seen = Seen()

    def take(batch: DataFrame, number: int) -> None:
        if between is not None:
            batch.collect()
            between(number)
        seen.take(batch, number)

    writer = frame.writeStream.foreachBatch(take).outputMode(ported.mode.lower())
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        for rows in ported.batches:
            feed.add(rows)
            query.processAllAvailable()
    finally:
        query.stop()
    return seen


def in_spark(engines: SideBySide, ported: Ported, checkpoint: Path) -> Seen:
    feed = engines.feed(pa.schema(ported.schema), files=FILES)
    with engines.spark_settings():
        frame = ported.case.on_spark(ported.shaped(feed.stream(engines.spark)))
        return batch_by_batch(ported, frame, feed, checkpoint)


def in_flock(
    engines: SideBySide, ported: Ported, checkpoint: Path, name: str, between: Callable[[int], None] | None = None
) -> Seen:
    feed = engines.feed(pa.schema(ported.schema), files=FILES)
    frame = ported.case.on_flock(engines.flock, ported.shaped(feed.stream(engines.spark)), name)
    return batch_by_batch(ported, frame, feed, checkpoint, between)


def shown(ported: Ported, read: Any) -> dict[str, list[str]]:
    """All state variables and the timers, as Spark's state reader shows them."""
    options = [{"stateVarName": name} for name in ported.job.VARIABLES]
    if ported.time != "none":
        options.append({"readRegisteredTimers": "true"})
    return {str(each): sorted(map(repr, read(each).drop("partition_id").collect())) for each in options}


def theirs(engines: SideBySide, ported: Ported, checkpoint: Path) -> dict[str, list[str]]:
    spark = engines.spark
    return shown(ported, lambda options: spark.read.format("statestore").options(**options).load(str(checkpoint)))


def ours(engines: SideBySide, ported: Ported, name: str, checkpoint: Path) -> dict[str, list[str]]:
    reader = lambda options: engines.spark.read.format("godwit").options(operator=name, **options)  # noqa: E731
    return shown(ported, lambda options: reader(options).load(str(checkpoint)))


@pytest.mark.feature(
    "timers", "timers that set and delete timers: of the past, of later, that are due with them, themselves"
)
@pytest.mark.feature(
    "timers",
    "a timer by event time that a timer sets, and that is due already",
    spark="fires in the next batch with data",
    godwit="fires at once, in a batch without data",
)
@pytest.mark.feature("state", "a map or a list that is changed while it is read")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in ALL]
)
def test_a_ported_job_gives_what_it_gives_in_spark(
    engines: SideBySide, checkpoint: Path, tmp_path: Path, name: str
) -> None:
    ported = ALL[name]
    expected = in_spark(engines, ported, tmp_path / "spark")
    given = in_flock(engines, ported, tmp_path / "flock", name)
    assert expected.rows
    assert given.by_key(ported.width) == expected.by_key(ported.width)
    if ported.late_timers:
        assert given.rows[-1][0] > expected.rows[-1][0]
    else:
        assert given.by_batch(ported.width) == expected.by_batch(ported.width)
    assert ours(engines, ported, name, checkpoint) == theirs(engines, ported, tmp_path / "spark")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "protocol", "killed"),
    [("sessions", "live", False), ("windows", "push", True), ("frames", "fetch", True), ("timers", "live", True)],
)
def test_a_ported_job_gives_the_same_while_keys_move_and_hosts_are_lost(
    engines: SideBySide, checkpoint: Path, tmp_path: Path, name: str, protocol: str, killed: bool
) -> None:
    """Each batch is evaluated twice; a host is killed between the two evaluations of the second and the third batch."""
    ported, operator = ALL[name], f"{name}-moved"
    expected = in_spark(engines, ported, tmp_path / "spark")
    moving: list[Moving] = []

    def between(batch: int) -> None:
        if not moving:
            moving.append(Moving(engines.flock, [operator], protocol))
        if killed and batch in (1, 2):
            kill_host(engines.flock, f"host-{batch % 2}")

    try:
        given = in_flock(engines, ported, tmp_path / "flock", operator, between)
    finally:
        for each in moving:
            stop(each, killed)
    assert moving[0].moves
    assert given.by_key(ported.width) == expected.by_key(ported.width)
    assert ours(engines, ported, operator, checkpoint) == theirs(engines, ported, tmp_path / "spark")


def stop(moving: Moving, killed: bool) -> None:
    """A move may fail because its host is killed."""
    try:
        moving.stop()
    except GodwitError:
        assert killed


def drained(ported: Ported, frame: DataFrame, feed: Feed, checkpoint: Path, part: slice) -> list[Any]:
    """A part of the batches: for each of them the query starts, and stops when all is processed."""
    seen = Seen()
    for rows in ported.batches[part]:
        feed.add(rows)
        writer = frame.writeStream.foreachBatch(seen.take).outputMode(ported.mode.lower()).trigger(availableNow=True)
        assert writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination(120)
    return seen.rows


@pytest.mark.long
@pytest.mark.parametrize("name", ["sessions", "windows", "scores", "purchases"])
def test_a_ported_job_goes_from_spark_to_a_flock_and_back(engines: SideBySide, tmp_path: Path, name: str) -> None:
    """Outputs of the three parts together, and the state at the end, are those of a query that stayed in Spark."""
    ported, spark = ALL[name], engines.spark
    case, whole, feed = ported.case, *(engines.feed(pa.schema(ported.schema), files=FILES) for _ in range(2))

    def stream() -> DataFrame:
        return ported.shaped(feed.stream(spark))

    with engines.spark_settings():
        everything = drained(
            ported, case.on_spark(ported.shaped(whole.stream(spark))), whole, tmp_path / "whole", slice(None)
        )
        parts = drained(ported, case.on_spark(stream()), feed, tmp_path / "old", slice(1))
        with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "flock") as flock:
            taken = replace(case, initial=godwit.spark_state(spark, tmp_path / "old"))
            frame = taken.on_flock(flock, stream(), name)
            godwit.continue_spark_query(frame, tmp_path / "old", tmp_path / "new")
            parts += drained(ported, frame, feed, tmp_path / "new", slice(1, 2))
        saved = godwit.state_for_spark(spark, tmp_path / "flock", name, ported.job())
        filled = replace(case, processor=saved.processor, initial=saved.initialState)
        query = filled.on_spark(stream().where("false"))
        godwit.continue_in_spark(query, tmp_path / "new", tmp_path / "back", outputMode=ported.mode.lower())
        parts += drained(ported, case.on_spark(stream()), feed, tmp_path / "back", slice(2, None))
    assert Seen(parts).by_key(ported.width) == Seen(everything).by_key(ported.width)
    assert theirs(engines, ported, tmp_path / "back") == theirs(engines, ported, tmp_path / "whole")

"""Time as Spark has it: watermarks, late rows, timers by event time and processing time, times to live, windows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import godwit
from godwit.windows import CountSliding, CountTumbling, EventSliding, EventTumbling
from tests.spark import processors
from tests.spark.processors import FLAVOURS_LONG, Flavour, flavoured
from tests.spark.side_by_side import Case, Feed, Seen, SideBySide, Table

EVENTS = pa.schema({"id": pa.string(), "at": pa.timestamp("us", tz="UTC"), "word": pa.string()})
MEASURED = pa.schema({"id": pa.string(), "at": pa.timestamp("us", tz="UTC"), "value": pa.int64()})
TTL_MS = 1_500


def at(seconds: float) -> dt.datetime:
    return dt.datetime(2024, 5, 1) + dt.timedelta(seconds=seconds)


SESSIONS: list[Table] = [
    [("a", at(0), "1"), ("b", at(2), "1"), ("a", at(3), "2")],
    [("c", at(30), "1"), ("b", at(1), "2"), ("b", at(31), "3"), ("d", at(25), "1")],
    [("a", at(4), "late"), ("c", at(33), "stop"), ("e", at(5.0005), "late"), ("d", at(26), "2")],
    [("f", at(60), "1"), ("a", at(24), "3"), ("b", at(20), "late or not")],
    [("a", at(49.9), "late or not"), ("g", at(50.0001), "just in time"), ("f", at(61), "2")],
    [("h", at(200), "1"), ("h", at(100), "2")],
    # A timer that is set by a timer and is due at once fires in the next batch; Spark makes none for it alone.
    [("i", at(201), "1")],
]


@pytest.fixture(scope="module")
def engines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide]:
    root = tmp_path_factory.mktemp("time")
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        yield SideBySide(spark, flock, root)


def case(kind: type[processors.Logic], flavour: Flavour, **more: Any) -> Case:
    settings = more.pop("settings", {})
    return Case(flavoured(kind, flavour, **settings), kind.OUTPUT, pandas=flavour == "pandas", **more)


def late(engines: SideBySide, name: str) -> int:
    counted: int = engines.flock.status()["operators"][name]["late"]
    return counted


def stepwise(engines: SideBySide, frame: DataFrame, feed: Feed, batches: list[Table]) -> Seen:
    """One batch after another, each with whatever it leads to before the next comes."""
    with engines.running(frame) as (query, seen):
        for rows in batches:
            feed.add(rows)
            query.processAllAvailable()
    return seen


@pytest.mark.feature("timers", "timers by event time fire at the watermark")
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_event_time_timers_fire_at_the_same_watermark(engines: SideBySide, flavour: Flavour) -> None:
    sessions = case(processors.Session, flavour, time="eventTime", watermark=("at", "10 seconds"))
    expected, given = engines.both(sessions, EVENTS, SESSIONS)
    assert given.by_key() == expected.by_key()
    assert any("reminded" in row for row in expected.by_key()["('a',)"])


@pytest.mark.feature("event time", "rows behind the watermark are late and not processed")
@pytest.mark.long
def test_rows_are_late_for_both_or_for_neither_and_counted(engines: SideBySide) -> None:
    """Batch by batch with idle time between, in which Spark runs a batch without data and so moves its watermark."""
    sessions = case(processors.Session, "row", time="eventTime", watermark=("at", "10 seconds"))
    feeds = [engines.feed(EVENTS), engines.feed(EVENTS)]
    with engines.spark_settings():
        expected = stepwise(engines, sessions.on_spark(feeds[0].stream(engines.spark)), feeds[0], SESSIONS)
    name = engines.name()
    given = stepwise(
        engines, sessions.on_flock(engines.flock, feeds[1].stream(engines.spark), name), feeds[1], SESSIONS
    )
    assert given.by_key() == expected.by_key()
    rows = sum(map(len, SESSIONS))
    in_time = sum(1 for _, row in expected.rows if not row[1].startswith(("ended", "reminded")))
    assert 0 < rows - in_time == late(engines, name)


@pytest.mark.long
def test_available_now_fires_what_the_last_batch_made_due(engines: SideBySide) -> None:
    sessions = case(processors.Session, "row", time="eventTime", watermark=("at", "10 seconds"))
    feed = engines.feed(EVENTS, SESSIONS)
    with engines.spark_settings():
        frame = sessions.on_spark(feed.stream(engines.spark))
        with engines.running(frame, availableNow=True) as (query, expected):
            query.awaitTermination()
    frame = sessions.on_flock(engines.flock, feed.stream(engines.spark), engines.name())
    with engines.running(frame, availableNow=True) as (query, given):
        query.awaitTermination()
    assert given.by_key() == expected.by_key()


@pytest.mark.feature("timers", "timers by processing time fire without data")
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_processing_time_timers_fire_without_data(engines: SideBySide, flavour: Flavour) -> None:
    alarm = case(processors.SilenceAlarm, flavour, time="processingTime")
    batches: list[Table] = [[("a", at(0), "x"), ("b", at(0), "y"), ("a", at(0), "z")]]

    def silent(rows: list[tuple[Any, ...]]) -> bool:
        return {row[0] for row in rows if row[1] == "silent 3"} == {"a", "b"}

    with engines.spark_settings():
        frame = alarm.on_spark(engines.feed(EVENTS, batches).stream(engines.spark))
        with engines.running(frame) as (_, expected):
            expected.wait(silent)
    frame = alarm.on_flock(engines.flock, engines.feed(EVENTS, batches).stream(engines.spark), engines.name())
    with engines.running(frame) as (query, given):
        given.wait(silent)
        query.processAllAvailable()
        counted = sum(batch.numInputRows for batch in query.recentProgress)
    assert counted == 3, "what makes Spark run a batch for timers is no row of the input"
    assert given.by_key() == expected.by_key()
    assert given.by_key()["('a',)"] == ["('x z', True)", *[f"('silent {n}', True)" for n in (1, 2, 3)]]


@pytest.mark.feature("initial state", "initial state may set timers, and state with a TTL")
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_initial_state_may_set_timers_and_times_to_live(engines: SideBySide, flavour: Flavour) -> None:
    rows = [("a", 10, "i1"), ("z", 7, "i3")]
    initial = engines.spark.createDataFrame(rows, "id string, start long, note string").coalesce(1)
    seeded = case(processors.SeededWithTimer, flavour, time="processingTime", initial=initial)
    batches: list[Table] = [[("a", at(0), ""), ("c", at(0), "")]]

    def rung(rows: list[tuple[Any, ...]]) -> bool:
        return {row[0] for row in rows if row[1] == "timer"} == {"a", "z"}

    with engines.spark_settings():
        frame = seeded.on_spark(engines.feed(EVENTS, batches).stream(engines.spark))
        with engines.running(frame) as (_, expected):
            expected.wait(rung)
    frame = seeded.on_flock(engines.flock, engines.feed(EVENTS, batches).stream(engines.spark), engines.name())
    with engines.running(frame) as (_, given):
        given.wait(rung)
    assert given.by_key() == expected.by_key()
    assert expected.by_key()["('a',)"] == ["('rows', 11, 'i1 fresh')", "('timer', 11, 'i1 fresh')"]


@pytest.mark.feature("state", "TTL of values, elements and entries")
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_state_lapses_by_its_time_to_live(engines: SideBySide, flavour: Flavour) -> None:
    """Each engine has its own clock, so each is held to what its own times say."""
    lapsing = case(processors.Lapsing, flavour, time="processingTime", settings={"ttl_ms": TTL_MS})
    feeds = [engines.feed(EVENTS), engines.feed(EVENTS)]
    with engines.spark_settings():
        expected = until_lapsed(engines, lapsing.on_spark(feeds[0].stream(engines.spark)), feeds[0])
    frame = lapsing.on_flock(engines.flock, feeds[1].stream(engines.spark), engines.name())
    given = until_lapsed(engines, frame, feeds[1])
    for seen in (expected, given):
        rows = [row for _, row in seen.rows]
        assert [row[3:] for row in rows] == [lived(rows[: i + 1]) for i in range(len(rows))]


def until_lapsed(engines: SideBySide, frame: DataFrame, feed: Feed) -> Seen:
    """Two words, one after the other, and then looks until both are gone."""
    words = iter(("first", "second"))
    with engines.running(frame) as (_, seen):
        for count in range(1, 200):
            feed.add([("a", at(0), next(words, "look"))])
            seen.wait(lambda rows, count=count: len(rows) == count)  # type: ignore[misc]
            if seen.rows[-1][1][3] is None:
                break
    return seen


def lived(rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """What the last of these rows should show, from when each word was written."""
    now_ms = rows[-1][1]
    words = [row[2] for row in rows if row[2] != "look" and row[1] + TTL_MS > now_ms]
    return (words[-1] if words else None, " ".join(words), " ".join(sorted(words)))


@pytest.mark.long
@pytest.mark.parametrize("flavour", FLAVOURS_LONG)
def test_second_operator_takes_its_time_from_the_outputs_of_the_first(engines: SideBySide, flavour: Flavour) -> None:
    first = case(processors.Stamped, flavour)
    second = case(processors.Session, flavour, time="eventTime", watermark=("at", "10 seconds"))
    feeds = [engines.feed(EVENTS, SESSIONS), engines.feed(EVENTS, SESSIONS)]
    with engines.spark_settings():
        middle = first.on_spark(feeds[0].stream(engines.spark))
        expected = engines.run(second.on_spark(middle))
    middle = first.on_flock(engines.flock, feeds[1].stream(engines.spark), engines.name())
    given = engines.run(second.on_flock(engines.flock, middle, engines.name()))
    assert given.by_key() == expected.by_key()
    assert any("ended" in row for rows in expected.by_key().values() for row in rows)


@pytest.mark.feature("batch DataFrames", "no watermark and no late rows")
@pytest.mark.parametrize("mode", ["processingTime", "eventTime"])
def test_batch_frame_has_no_watermark_and_no_late_rows(engines: SideBySide, mode: str) -> None:
    before_1970 = dt.datetime(1969, 1, 1)
    feed = engines.feed(MEASURED, [[("a", at(0), 3_600_000), ("b", before_1970, 3_600_000), ("a", before_1970, 1)]])
    alarm = case(processors.Alarm, "row", time=mode, watermark=("at", "1 second"))
    with engines.spark_settings():
        expected = sorted(map(tuple, alarm.on_spark(feed.batch(engines.spark)).collect()))
    given = alarm.on_flock(engines.flock, feed.batch(engines.spark), engines.name())
    assert expected == [("a", "set", -1), ("a", "set", -1), ("b", "set", -1)]
    assert sorted(map(tuple, given.collect())) == expected


def test_processing_time_has_no_watermark(engines: SideBySide) -> None:
    alarm = case(processors.Alarm, "row", time="processingTime")
    rows: Table = [("a", at(0), 0), ("b", at(0), 3_600_000)]
    feeds = [engines.feed(MEASURED, [rows]), engines.feed(MEASURED, [rows])]
    with engines.spark_settings():
        frame = alarm.on_spark(feeds[0].stream(engines.spark))
        with engines.running(frame) as (_, expected):
            expected.wait(lambda rows: len(rows) == 3)
    frame = alarm.on_flock(engines.flock, feeds[1].stream(engines.spark), engines.name())
    with engines.running(frame) as (query, given):
        given.wait(lambda rows: len(rows) == 3)
        query.processAllAvailable()
    assert given.by_key() == expected.by_key()


# -- windows -----------------------------------------------------------------------------------------------------------

MEASURES: list[Table] = [
    [("a", at(0), 1), ("b", at(2), 2), ("a", at(3), 3)],
    [("a", at(26), 4), ("b", at(9.999), 5), ("a", at(10), 6)],
    [("a", at(8), 7), ("b", at(31), 8), ("a", at(14.5), 9), ("c", at(15), 10)],
    [("c", at(19), 11), ("a", at(21), 12), ("b", at(4), 13), ("d", at(19.9999), 14)],
    [("d", at(90), 15), ("a", at(29.9), 16)],
    [("d", at(91), 17), ("a", at(80), 18), ("b", at(79.9), 19)],
    [("e", at(300), 20)],
]


@pytest.mark.parametrize(
    ("size", "slide", "step_by_step"),
    [
        ("10 seconds", None, False),
        pytest.param("10 seconds", None, True, marks=pytest.mark.long),
        pytest.param("20 seconds", "5 seconds", False, marks=pytest.mark.long),
    ],
)
def test_event_time_windows_are_those_of_spark(
    engines: SideBySide, size: str, slide: str | None, step_by_step: bool
) -> None:
    sums = {"n": "count", "total": ("sum", "value"), "least": ("min", "value"), "most": ("max", "value")}
    ours = EventTumbling(size, "at", sums) if slide is None else EventSliding(size, slide, "at", sums)
    seen = []
    for engine in ("spark", "godwit"):
        feed = engines.feed(MEASURED, [] if step_by_step else MEASURES)
        marked = feed.stream(engines.spark).withWatermark("at", "5 seconds")
        if engine == "spark":
            values = sf.count("*").alias("n"), sf.sum("value"), sf.min("value"), sf.max("value")
            frame = marked.groupBy("id", sf.window("at", size, slide)).agg(*values)
        else:
            frame = engines.flock.process(marked, "id", ours, timeMode="eventTime", name=engines.name())
        with engines.spark_settings():
            seen.append(stepwise(engines, frame, feed, MEASURES) if step_by_step else engines.run(frame))
    expected, given = seen
    assert len(expected.rows) > 6
    assert sorted(repr(tuple(row)) for _, row in given.rows) == sorted(repr(tuple(row)) for _, row in expected.rows)


def test_count_windows_hold_every_so_many_rows_of_a_key(engines: SideBySide) -> None:
    values = [("ab"[i % 3 == 0], at(i), i) for i in range(23)]
    batches: list[Table] = [values[:5], values[5:6], values[6:20], values[20:]]
    expected = {}
    for key in "ab":
        mine = [value for k, _, value in values if k == key]
        tumbling = [mine[i : i + 4] for i in range(0, len(mine) - 3, 4)]
        sliding = [mine[i - 4 : i] for i in range(4, len(mine) + 1, 2)]
        expected[key] = ([(len(w), sum(w)) for w in tumbling], [(len(w), sum(w)) for w in sliding])
    sums = {"n": "count", "total": ("sum", "value")}
    for at_index, window in enumerate((CountTumbling(4, sums), CountSliding(4, 2, sums))):
        frame = engines.flock.process(
            engines.feed(MEASURED, batches).stream(engines.spark), "id", window, name=engines.name()
        )
        rows = [row for _, row in engines.run(frame).rows]
        given = {key: [row[-2:] for row in rows if row[0] == key] for key in "ab"}
        assert given == {key: each[at_index] for key, each in expected.items()}


def test_windows_that_nothing_would_close_are_refused_at_definition(engines: SideBySide) -> None:
    feed = engines.feed(MEASURED, [[("a", at(0), 1)]])
    stream, window = feed.stream(engines.spark), EventTumbling("10 seconds", "at", {"n": "count"})
    elsewhere = stream.selectExpr("id", "at", "at as other").withWatermark("other", "1 second")
    for frame, mode in (
        (stream.withWatermark("at", "1 second"), "none"),
        (stream, "eventTime"),
        (elsewhere, "eventTime"),
        (feed.batch(engines.spark), "eventTime"),
    ):
        with pytest.raises(godwit.errors.DefinitionError):
            engines.flock.process(frame, "id", window, timeMode=mode, name=engines.name())

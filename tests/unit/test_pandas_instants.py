"""Keys with instants, as PySpark stores them with pandas: what is meant, in the zones of session and process."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import TimestampType

from godwit.spark.porting.pandas_instants import PandasInstants, has_instant, shown

ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe"]


@pytest.fixture
def process() -> Iterator[Callable[[str], None]]:
    """Sets the time zone of the process."""
    with pytest.MonkeyPatch.context() as patched:

        def use(zone: str) -> None:
            patched.setenv("TZ", zone)
            time.tzset()

        yield use
    time.tzset()


def micros(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def in_zone(zone: str, *when: int) -> int:
    return micros(dt.datetime(*when, tzinfo=ZoneInfo(zone)))  # type: ignore[misc, arg-type]


@pytest.mark.parametrize("process_zone", ZONES)
@pytest.mark.parametrize("session", ZONES)
def test_what_is_stored_is_what_pyspark_stores_and_it_can_be_undone(
    process: Callable[[str], None], session: str, process_zone: str
) -> None:
    process(process_zone)
    instants = PandasInstants(session)
    for when in ((2024, 5, 1, 12, 0, 0, 7), (2024, 1, 1), (1960, 2, 3, 4, 5), (2037, 12, 31, 23, 59)):
        instant = in_zone("UTC", *when)
        wall_clock = pd.Timestamp(instant, unit="us", tz=session).tz_localize(None)
        (stored,) = instants.stored(instant)
        assert stored == TimestampType().toInternal(wall_clock)
        assert instants.meant(stored) == [instant]


def test_an_hour_that_comes_twice_is_two_instants(process: Callable[[str], None]) -> None:
    process("UTC")
    instants = PandasInstants("America/New_York")
    first, second = (in_zone("UTC", 2024, 11, 3, hour, 30) for hour in (5, 6))
    assert instants.stored(first) == instants.stored(second)
    assert instants.meant(*instants.stored(first)) == [first, second]


def test_an_hour_that_the_process_leaves_out_is_another_one(process: Callable[[str], None]) -> None:
    """PySpark takes it for an hour earlier or an hour later, one like the other."""
    process("Europe/Berlin")
    instants = PandasInstants("UTC")
    before, within, behind = (in_zone("UTC", 2024, 3, 31, hour, 30) for hour in (1, 2, 3))
    assert [instants.meant(each) for each in sorted(instants.stored(within))] == [[before, within], [within, behind]]


def test_a_time_that_the_session_has_not_is_no_instant(process: Callable[[str], None]) -> None:
    process("UTC")
    assert PandasInstants("Europe/Berlin").meant(in_zone("UTC", 2024, 3, 31, 2, 30)) == []


def test_key_columns_are_undone_inside_structs_too(process: Callable[[str], None]) -> None:
    process("UTC")
    instants = PandasInstants("America/New_York")
    kind = pa.struct({"at": pa.timestamp("us", tz="America/New_York"), "ntz": pa.timestamp("us"), "n": pa.int32()})
    noon, twice = dt.datetime(2024, 5, 1, 12), dt.datetime(2024, 11, 3, 1, 30)
    at_noon, at_twice = (each.replace(tzinfo=dt.UTC) for each in (noon, twice))
    rows: list[Any] = [{"at": at_noon, "ntz": noon, "n": 1}, None, {"at": at_twice, "ntz": twice, "n": 2}, {"at": None}]
    column = pa.array(rows, kind)
    assert has_instant(kind)
    assert list(instants.doubtful(column)) == [2]
    undone = instants.undone(column).to_pylist()
    assert undone[0]["at"].astimezone(dt.UTC) == dt.datetime(2024, 5, 1, 16, tzinfo=dt.UTC)
    assert (undone[0]["ntz"], undone[0]["n"], undone[1], undone[3]["at"]) == (noon, 1, None, None)
    assert shown(column[0].as_py()) == {"at": "2024-05-01 12:00:00", "ntz": noon, "n": 1}
    plain = pa.array([noon], pa.timestamp("us"))
    assert instants.undone(plain) is plain
    assert not has_instant(plain.type)
    assert list(instants.doubtful(plain)) == []

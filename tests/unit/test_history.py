"""What a flock remembers: its hosts, what happened, and tables that are made anew from what hosts say."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from godwit.control.table_from_hosts import changed, first_table, rebuilt, settled
from godwit.errors import CheckpointCorrupt, HostUnavailable
from godwit.model.ownership import Incoming, Ownership
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.runtime.liveness.leases import Lease, host_directory, write_lease
from godwit.runtime.messages import CheckTimers, CheckWatermark, TimersDue, WatermarkMoved
from godwit.spark.checkpoint.flock_directory import FlockDirectory, read_roster
from godwit.spark.checkpoint.history import FILE, History
from godwit.spark.define.timer_source import TimerReader
from godwit.transport import typed
from godwit.transport.flight import Service

# -- the lines -------------------------------------------------------------------------------------------------------


def test_lines_come_back_in_order_also_to_another_reader(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add("requested", migration="m1", operators=["speed"])
    history.add("ended", migration="m1", operators=["speed"], outcome="done")
    assert [line["event"] for line in History(tmp_path).lines()] == ["requested", "ended"]


def test_half_a_line_of_a_crash_is_left_out_and_spoils_nothing(tmp_path: Path) -> None:
    History(tmp_path).add("requested", migration="m1")
    with (tmp_path / FILE).open("a") as file:
        file.write('{"at": "2026-01-01T00:00:00Z", "eve')
    History(tmp_path).add("ended", migration="m1")
    assert [line["event"] for line in History(tmp_path).lines()] == ["requested", "ended"]


def test_lines_of_an_operator_are_those_that_name_it_or_none(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add("defined", operator="speed")
    history.add("defined", operator="other")
    history.add("joined", hosts=["host-2"])
    history.add("began", moves=[{"operator": "speed"}])
    history.add("ended", operators=["other"])
    assert [line["event"] for line in history.lines("speed")] == ["defined", "joined", "began"]


def test_a_request_without_an_outcome_is_unfinished(tmp_path: Path) -> None:
    history = History(tmp_path)
    for name, last in (("m1", "ended"), ("m2", "refused"), ("m3", "began"), ("m4", "recovered")):
        history.add("requested", migration=name)
        history.add(last, migration=name)
    assert list(history.unfinished()) == ["m3"]
    assert history.next_number() == 5


# -- the roster ------------------------------------------------------------------------------------------------------


def test_a_flock_has_the_hosts_it_began_with_until_some_join_or_leave(tmp_path: Path) -> None:
    directory = FlockDirectory.open(tmp_path, 2, 8)
    assert directory.roster() == ("host-0", "host-1")
    assert read_roster(tmp_path) == ()
    directory.write_roster(["host-1", "host-2"])
    assert FlockDirectory.open(tmp_path, 2, 8).roster() == read_roster(tmp_path) == ("host-1", "host-2")
    assert directory.routing.hosts == ("host-0", "host-1"), "how it began does not change"


def test_names_of_hosts_are_never_used_again(tmp_path: Path) -> None:
    directory = FlockDirectory.open(tmp_path, 2, 8)
    assert directory.next_hosts(2) == ["host-2", "host-3"]
    directory.write_roster(["host-0", "host-1", "host-2", "host-3"])
    directory.write_roster(["host-0"])
    assert directory.next_hosts(1) == ["host-4"]


@pytest.mark.parametrize("text", ["{", "[]", '{"next": 3}'])
def test_a_damaged_roster_is_corrupt(tmp_path: Path, text: str) -> None:
    directory = FlockDirectory.open(tmp_path, 2, 8)
    (tmp_path / "roster.json").write_text(text)
    with pytest.raises(CheckpointCorrupt, match=r"roster\.json"):
        directory.roster()


def test_timers_of_hosts_that_joined_since_are_asked_for_too(tmp_path: Path) -> None:
    directory = FlockDirectory.open(tmp_path, 2, 8)
    service = Service("127.0.0.1", "token", typed.actions({CheckTimers: lambda _: TimersDue(True)}))
    host_directory(str(tmp_path), "host-2").mkdir(parents=True)
    write_lease(host_directory(str(tmp_path), "host-2"), Lease(1, f"127.0.0.1:{service.ports}", 1))
    given = {"operator": "speed", "checkpoint": str(tmp_path), "hosts": "host-0,host-1", "token": "token"}
    reader = TimerReader(given)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start, "nobody knows of host-2 yet"
    directory.write_roster(["host-0", "host-1", "host-2"])
    assert reader.latestOffset(start, ReadAllAvailable())["tick"] > 0
    directory.write_roster(["host-0", "host-1"])
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    reader.stop()
    service.stop(2.0)


def test_timers_of_a_host_that_is_about_to_be_back_are_waited_for(tmp_path: Path) -> None:
    """Before: the batch began without them, and they fired a batch later where no rows came."""
    FlockDirectory.open(tmp_path, 1, 8)
    directory = host_directory(str(tmp_path), "host-0")
    asked = threading.Event()

    def away(_: CheckTimers) -> TimersDue:
        asked.set()
        raise HostUnavailable("the host is about to end")

    before = Service("127.0.0.1", "token", typed.actions({CheckTimers: away}))
    after = Service("127.0.0.1", "token", typed.actions({CheckTimers: lambda _: TimersDue(True)}))
    directory.mkdir(parents=True)
    write_lease(directory, Lease(1, f"127.0.0.1:{before.ports}", 1))
    given = {"operator": "speed", "checkpoint": str(tmp_path), "hosts": "host-0", "token": "token"}
    reader = TimerReader(given)
    with ThreadPoolExecutor() as pool:
        offset = pool.submit(reader.latestOffset, reader.initialOffset(), ReadAllAvailable())
        assert asked.wait(10)
        write_lease(directory, Lease(2, f"127.0.0.1:{after.ports}", 1))
        assert offset.result(10)["tick"] > 0
    reader.stop()
    assert before.stop(2.0)
    assert after.stop(2.0)


def test_a_driver_that_is_busy_is_asked_again_whether_the_watermark_has_moved(tmp_path: Path) -> None:
    """With `availableNow` there is no later trigger that could ask, and timers would wait for the next rows."""
    FlockDirectory.open(tmp_path, 1, 8)
    busy = iter([True, False])

    def moved(_: CheckWatermark) -> WatermarkMoved:
        if next(busy):
            raise HostUnavailable("busy")
        return WatermarkMoved(True)

    driver = Service("127.0.0.1", "token", typed.actions({CheckWatermark: moved}))
    given = {"operator": "speed", "checkpoint": str(tmp_path), "hosts": "host-0", "token": "token"}
    reader = TimerReader(given | {"controller": f"127.0.0.1:{driver.ports}"})
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["tick"] > 0
    reader.stop()
    assert driver.stop(2.0)


# -- tables from what hosts say --------------------------------------------------------------------------------------

FIRST = Routing.spread(["a", "b"], 8)


def own(*hosts: str) -> dict[str, Ownership]:
    return {host: Ownership.initial(host, FIRST) for host in hosts}


def hand_over(owned: dict[str, Ownership], units: Units, origin: str, target: str, serve: bool = True) -> None:
    epochs = {unit: owned[origin].share(unit).epoch for unit in units}
    apart = owned[origin].apart(units)
    owned[origin].cut(units, target)
    owned[target].prepare("m/0", Incoming(units, origin, epochs, apart))
    owned[origin].release("m/0", units, target)
    if serve:
        owned[target].serve("m/0")
        owned[origin].confirm("m/0")


def test_nothing_moved_gives_the_first_table() -> None:
    assert rebuilt(FIRST, own("a", "b"), ["a", "b"]) is FIRST


def test_what_was_released_is_the_targets_before_it_serves() -> None:
    owned = own("a", "b", "c")
    hand_over(owned, Units(frozenset((0, 1))), "a", "c", serve=False)
    table = rebuilt(FIRST, owned, ["a", "b", "c"])
    assert table.groups_of("c") == [0, 1]
    assert table.version > FIRST.version


def test_what_was_only_prepared_is_still_the_origins() -> None:
    owned = own("a", "b")
    units = Units(frozenset((0,)))
    owned["a"].cut(units, "b")
    owned["b"].prepare("m/0", Incoming(units, "a", {Unit("group", 0): 1}, {}))
    restarted = {host: Ownership.from_dict(host, one.to_dict()) for host, one in owned.items()}
    assert rebuilt(FIRST, restarted, ["a", "b"]) is FIRST
    assert settled(units, restarted["a"], restarted["b"]) is None, "the target has not been told yet"
    restarted["b"].drop(units)
    assert settled(units, restarted["a"], restarted["b"]) == {}


@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 7), max_size=3), st.sets(st.integers(0, 40), max_size=3), st.sampled_from("abc")
        ),
        max_size=8,
    )
)
def test_the_table_is_what_the_hosts_own_whatever_was_moved(moves: list[tuple[set[int], set[int], str]]) -> None:
    owned = own("a", "b", "c")
    for groups, keys, target in moves:
        for origin in "abc":
            mine = owned[origin].mine()
            single = frozenset(
                key for key in keys if owned[origin].of(key).stand.name == "MINE" and key % 8 not in groups
            )
            units = Units(mine.groups & groups, single)
            if origin != target and units:
                hand_over(owned, units, origin, target)
    table = rebuilt(FIRST, owned, ["a", "b", "c"])
    for route_hash in range(48):
        (owner,) = [host for host, one in owned.items() if one.of(route_hash).stand.name == "MINE"]
        assert table.owner(route_hash) == owner


def test_a_new_operator_is_dealt_to_the_hosts_there_are() -> None:
    table = first_table(FIRST, ("b", "c"))
    assert table.hosts == ("b", "c")
    assert set(table.groups_of("b")) >= set(FIRST.groups_of("b"))
    assert table.groups_of("c")


def test_what_changed_is_told_by_its_new_owner() -> None:
    later = FIRST.joined(["c"]).moved({Unit("group", 0): 2, Unit("key", 13): 2}, "c")
    assert changed(FIRST, later) == {"c": Units(frozenset((0,)), frozenset((13,)))}
    assert changed(later, later) == {}

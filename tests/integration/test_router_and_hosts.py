"""Routers against real host processes: restarts, duplicate attempts, fences and refusals, without Spark."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from godwit.errors import HostUnavailable, MalformedRequest, NotReplayable, StaleGeneration, StaleRun, WrongToken
from godwit.runtime.messages import FetchState, GetStatus, LaneOpened
from godwit.runtime.router import pace
from godwit.runtime.router.pace import ROWS_MIN
from godwit.transport import typed, wire
from godwit.transport.addresses import ServiceAddress
from godwit.transport.streams import ClientStream
from tests.integration.nest import INPUT, OPERATOR, Nest, route_hash, rows
from tests.spark.flocks import Count, assert_exact

KEYS = 7


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Nest(tmp_path / "godwit")
    yield nest
    nest.close()


def truth(numbers: range) -> dict[int, int]:
    return dict(Counter(n % KEYS for n in numbers))


def triples(outputs: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return [(row["key"], row["count"], row["n"]) for row in outputs]


def chunks(numbers: range, size: int) -> list[pa.RecordBatch]:
    return [rows(numbers[at : at + size]) for at in range(0, len(numbers), size)]


def test_router_waits_for_a_host_that_takes_seconds_to_come_back(nest: Nest) -> None:
    nest.start_all()
    back: list[threading.Timer] = []

    def fed() -> Iterator[pa.RecordBatch]:
        yield rows(range(50))
        nest.kill("host-0")
        # Longer than the second after which a router tries the old address again.
        back.append(threading.Timer(3.0, nest.begin, ["host-0"]))
        back[0].start()
        yield rows(range(50, 100))

    outputs = triples(list(nest.run(0, "0", fed())))
    back[0].join()
    assert_exact(outputs, truth(range(100)))


@pytest.mark.parametrize("size", [1, 5_000])
def test_in_real_time_rows_leave_though_no_further_rows_come(nest: Nest, size: int) -> None:
    nest.start_all()
    left: list[tuple[int, int, int]] = []

    def fed() -> Iterator[pa.RecordBatch]:
        for at in range(0, 4 * size, size):
            yield rows(range(at, at + size))
            assert len(left) == at + size, "all of them have left before the router asks for more"

    for row in nest.run(0, "0", fed(), real_time=True):
        left += triples([row])
    assert_exact(left, truth(range(4 * size)))


def test_router_gives_up_on_a_host_that_stays_away_and_says_which(nest: Nest) -> None:
    nest.start_all()
    nest.kill("host-1")
    with pytest.raises(HostUnavailable, match=r"host-1 .* 2 s.*operator=count"):
        list(nest.run(0, "0", chunks(range(20), 10), wait_s=2.0))


@pytest.mark.parametrize("ended", [True, False])
def test_rows_that_change_places_across_hosts_are_refused(nest: Nest, ended: bool) -> None:
    """Neither host knows what the other has got under that number, but each has more rows than came again."""
    nest.start_all()
    owner = {key: nest.routing.owners[route_hash(key) % 64] for key in range(7)}
    first = next(key for key in owner if owner[key] == 0)
    second = next(key for key in owner if owner[key] == 1)
    attempt = nest.run(0, "0", [rows([first, second])])
    assert len(list(attempt) if ended else [next(attempt), next(attempt)]) == 2
    with pytest.raises(NotReplayable, match="2 rows of this partition were applied here, and only 1 were sent again"):
        list(nest.run(0, "0", [rows([second, first])]))


def test_two_attempts_at_once_apply_once_and_get_the_same_rows(nest: Nest) -> None:
    nest.start_all()
    both = threading.Barrier(2)
    got: dict[int, list[tuple[int, int, int]]] = {}

    def attempt(number: int, size: int) -> None:
        def fed() -> Iterator[pa.RecordBatch]:
            for chunk in chunks(range(400), size):
                if not both.broken:
                    both.wait(30)
                yield chunk
            both.abort()

        try:
            got[number] = triples(list(nest.run(0, "0", fed())))
        except threading.BrokenBarrierError:
            got[number] = triples(list(nest.run(0, "0", chunks(range(400), size))))

    threads = [threading.Thread(target=attempt, args=pair) for pair in ((1, 40), (2, 25))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert_exact(got[1], truth(range(400)))
    assert got[1] == got[2]
    assert nest.state(committed_batch=0) == truth(range(400))


def test_an_attempt_that_stopped_half_way_is_completed_by_the_next(nest: Nest) -> None:
    nest.start_all()
    first = nest.run(0, "0", chunks(range(200), 10))
    began = triples([next(first) for _ in range(30)])
    first.close()
    second = triples(list(nest.run(0, "0", chunks(range(200), 33))))
    assert second[:30] == began
    assert_exact(second, truth(range(200)))
    assert nest.state(committed_batch=0) == truth(range(200))


def test_a_killed_host_answers_a_repeated_attempt_from_its_changelog(nest: Nest) -> None:
    nest.start_all()
    first = triples(list(nest.run(0, "0", chunks(range(100), 20))))
    for host in nest.routing.hosts:
        nest.kill(host)
    nest.start_all()
    assert triples(list(nest.run(0, "0", chunks(range(100), 30)))) == first
    assert_exact(first, truth(range(100)))
    assert nest.state(committed_batch=0) == truth(range(100))


def test_rows_that_come_again_in_another_order_are_refused(nest: Nest) -> None:
    nest.start_all()
    list(nest.run(0, "0", [rows(range(20))]))
    with pytest.raises(NotReplayable, match="another key"):
        list(nest.run(0, "0", [rows(range(1, 21))]))
    with pytest.raises(NotReplayable, match="cannot be completed in this run"):
        list(nest.run(0, "0", [rows(range(20))]))
    nest.runs = {"run-2"}
    list(nest.run(0, "0", [rows(range(20))], run="run-2"))
    with pytest.raises(NotReplayable, match="had 20 rows before and has 19"):
        list(nest.run(0, "0", [rows(range(19))], run="run-2"))
    assert nest.state(committed_batch=0) == truth(range(20))


def test_an_older_run_is_fenced_by_a_newer_one(nest: Nest) -> None:
    nest.start_all()
    zombie = nest.run(0, "0", chunks(range(200), 10))
    began = triples([next(zombie) for _ in range(20)])
    nest.runs = {"run-2"}
    replayed = triples(list(nest.run(0, "0", chunks(range(200), 50), run="run-2")))
    assert replayed[:20] == began
    with pytest.raises(StaleRun, match="run-1 was replaced by run run-2"):
        list(zombie)
    with pytest.raises(StaleRun):
        list(nest.run(0, "0", chunks(range(200), 10), run="run-1"))
    assert_exact(replayed, truth(range(200)))


def test_an_older_run_stays_fenced_when_hosts_restart(nest: Nest) -> None:
    nest.start_all()
    list(nest.run(0, "0", [rows(range(20))]))
    nest.runs = {"run-2"}
    list(nest.run(0, "0", [rows(range(20))], run="run-2"))
    for host in nest.routing.hosts:
        nest.kill(host)
    nest.start_all()
    with pytest.raises(StaleRun):
        list(nest.run(0, "0", [rows(range(20))], run="run-1"))


def test_router_goes_on_with_the_successor_of_a_host_that_was_taken_for_dead(nest: Nest) -> None:
    nest.start_all()

    def fed() -> Iterator[pa.RecordBatch]:
        yield from chunks(range(50), 10)
        nest.start("host-0")  # the process before it lives on and still has the router's stream
        yield from chunks(range(50, 100), 10)

    outputs = triples(list(nest.run(0, "0", fed())))
    assert_exact(outputs, truth(range(100)))
    assert nest.state(committed_batch=0) == truth(range(100))


def test_a_second_flock_on_the_checkpoint_fences_the_first_for_good(nest: Nest, tmp_path: Path) -> None:
    nest.start_all()
    older = nest.run(0, "0", chunks(range(200), 10))
    began = triples([next(older) for _ in range(20)])
    newer = Nest(nest.checkpoint)
    try:
        newer.runs = {"run-2"}
        processes = [nest.process(host) for host in nest.routing.hosts]
        newer.start_all()
        with pytest.raises(StaleGeneration, match="opened again"):
            list(older)
        for process in processes:
            process.wait(30)
        comeback = nest.begin("host-0")
        assert comeback.wait(30) != 0, "a host of the older flock does not take over again"
        replayed = triples(list(newer.run(0, "0", chunks(range(200), 50), run="run-2")))
        assert replayed[:20] == began
        assert_exact(replayed, truth(range(200)))
        with pytest.raises(StaleGeneration, match="opened again"):
            list(nest.run(0, "0", chunks(range(200), 10)))
    finally:
        newer.close()


# -- refusals --------------------------------------------------------------------------------------------------------


def exchange(nest: Nest, host: str, command: bytes, token: str | None = None) -> Any:
    lease = nest.lease(host)
    assert lease is not None
    stream = ClientStream(ServiceAddress.of(lease.address).streams, token or nest.token, command, 20.0)
    return stream, stream


def first_answer(writer: Any, reader: Any) -> dict[str, Any]:
    writer.begin(INPUT)
    return wire.unpack(reader.read_chunk().app_metadata)


def test_a_wrong_token_is_refused_on_every_path(nest: Nest) -> None:
    nest.start_all()
    client = nest.client("host-0", token="guessed")
    with pytest.raises(WrongToken, match="does not accept this token"):
        typed.ask(client, GetStatus())
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(typed.fetch(client, FetchState(OPERATOR, 0))[1])
    client.close()
    with pytest.raises(WrongToken):
        list(nest.run(0, "0", [rows(range(5))], token="guessed"))
    with pytest.raises(flight.FlightUnauthenticatedError):
        flight.connect(f"grpc+tcp://{ServiceAddress.of(nest.controller.address).calls}").do_action(
            flight.Action("get_definitions", b"")
        ).__next__()
    assert list(nest.run(0, "0", [rows(range(5))])), "the host still serves"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (b"\x00\xff", "readable header"),
        (b"[1, 2]", "no kind"),
        (b'{"v": 99, "kind": "open_lane"}', "wire version 99"),
        (wire.pack("exchange"), "where one of open_lane"),
        (wire.pack("open_lane"), "'operator'"),
        (wire.pack("open_lane", operator=OPERATOR, query="q", run="r", batch="three", lane="0"), "'batch'"),
        (wire.pack("open_lane", operator=OPERATOR, query="q", run="r", batch=3), "'lane'"),
    ],
)
def test_a_malformed_exchange_is_refused_by_name(nest: Nest, command: bytes, said: str) -> None:
    nest.start("host-0")
    writer, reader = exchange(nest, "host-0", command)
    writer.begin(INPUT)
    with pytest.raises((flight.FlightServerError, MalformedRequest), match=said):
        wire.unpack(reader.read_chunk().app_metadata)
    nest.ask("host-0", GetStatus())


def test_malformed_actions_rows_and_fetches_are_refused_by_name(nest: Nest) -> None:
    nest.start("host-0")
    client = nest.client("host-0")
    with pytest.raises(MalformedRequest, match="unknown action 'dance'"):
        client.call("dance")
    with pytest.raises(MalformedRequest, match="'operator'"):
        client.call("clear_letters", operator=5)
    with pytest.raises(MalformedRequest, match="'operator'"):
        client.call("define")
    with pytest.raises(flight.FlightServerError, match="GODWIT-MALFORMED-REQUEST"):
        list(client.fetch("fetch_state", operator=None)[1])
    for note in (b"?", wire.pack("sing"), wire.pack("finish_lane")):
        writer, reader = exchange(
            nest, "host-0", wire.pack("open_lane", operator=OPERATOR, query="q", run="run-1", batch=0, lane="0")
        )
        writer.begin(INPUT)
        assert typed.unpack(reader.read_chunk().app_metadata, LaneOpened)
        writer.write_metadata(note)
        with pytest.raises(MalformedRequest):
            wire.unpack(reader.read_chunk().app_metadata)
    typed.ask(client, GetStatus())
    client.close()


def test_a_host_that_listens_on_all_addresses_announces_one_that_leads_there(tmp_path: Path) -> None:
    nest = Nest(tmp_path)
    nest.bind = "0.0.0.0"
    try:
        nest.start("host-0")
        lease = nest.lease("host-0")
        assert lease is not None
        assert lease.address.startswith("127.0.0.1:"), "that is where its controller is"
    finally:
        nest.close()


class Slow(Count):
    """Tells for each row with how many others it came."""

    output_schema = pa.schema([("key", pa.int64()), ("size", pa.int64())])

    def process(self, rows: Any, state: Any, times: Any) -> Any:
        time.sleep(len(rows) / 2_000)
        return self.emit(rows, size=np.full(len(rows), len(rows)))


def test_rows_that_take_long_are_sent_in_smaller_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(pace._rates, OPERATOR, raising=False)  # what other tests have left
    nest = Nest(tmp_path, hosts=1, processor=Slow()).start_all()
    try:
        sizes = [[row["size"] for row in nest.run(batch, "0", [rows(range(2_000), 50)])] for batch in (0, 1)]
        assert set(sizes[0]) == {2_000}, "nothing is known of it yet"
        assert len(sizes[1]) == 2_000
        assert max(sizes[1]) == ROWS_MIN
    finally:
        nest.close()

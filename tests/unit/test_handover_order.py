"""What an origin sends leaves in the order in which it was decided, and a target takes nothing for a step that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from godwit.migration import PROTOCOLS
from godwit.model.ownership import Stand
from godwit.model.progress import BatchRef
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.handover.connection import Queued, TargetConnection
from godwit.state.ledger import Entry, with_rows
from tests.unit.pair import ALL, Note, Pair, after, joined, kind_is

KEYS = 2_000  # some slices
FIRST = dict.fromkeys(range(KEYS), 1)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with joined(tmp_path) as pair:
        pair.a.put(0, *FIRST.items())
        yield pair


def released_then_cut(pair: Pair, then: Callable[[Note], bool] = lambda _: False) -> None:
    """live-unordered, up to where the origin has released everything; the next connection stops where `then` says."""
    pair.there = kind_is("step_end")
    pair.migrate("live-unordered")
    first = pair.wait_connection(1)
    first.there.wait_stopped()
    pair.there = then
    first.break_()


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_keys_go_to_and_fro_over_the_line(pair: Pair, protocol: str) -> None:
    """The line by itself: nothing is lost, held back or broken."""
    assert pair.moved(protocol).dropped == 0
    assert pair.b.put(0, (1, 1)) == [(1, 2)]
    assert pair.moved("pause", back=True).dropped == 0
    assert pair.a.totals() == FIRST | {1: 2}
    assert pair.a.left_over() == pair.b.left_over() == []


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_watermarks_of_both_ends_are_merged(pair: Pair, protocol: str) -> None:
    """Each may have heard of lanes of which the other has not; of a lane that both know, the later time counts."""
    pair.b.put(0)  # the same batch
    for side, seen, reported in ((pair.a, {"0": 50, "1": 70}, {"0": 90}), (pair.b, {"0": 60}, {"2": 10})):
        watermark = side.shared.instance.batch.watermark
        watermark.lanes, watermark.reported = dict(seen), dict(reported)
    assert pair.moved(protocol).dropped == 0
    merged = pair.b.shared.instance.batch.watermark
    assert (merged.lanes, merged.reported) == ({"0": 60, "1": 70}, {"0": 90, "2": 10})
    pair.b.restart()
    assert pair.b.shared.instance.batch.watermark == merged, "and it is written down"


def test_state_leaves_before_released_when_it_was_missing(pair: Pair) -> None:
    released_then_cut(pair)
    assert pair.wait_ended().done == 1
    kinds = pair.connections[1].there.kinds()
    told = kinds[kinds.index("step_released") + 1 :]
    assert told.index("step_end") < told.index("step_released") if "step_released" in told else "step_end" in told
    assert "step_released" not in told[: told.index("step_end")], told


def test_state_is_asked_for_once_a_connection_and_sent_once(pair: Pair) -> None:
    released_then_cut(pair)
    assert pair.wait_ended().done == 1
    connection = pair.connections[1]
    assert connection.back.kinds().count("step_missing") == 1
    assert connection.there.kinds().count("step_end") == 1


def test_a_second_copy_does_not_take_the_place_of_rows_applied_since(pair: Pair) -> None:
    """What is on the line behind the first copy arrives when the target has served, and applied rows."""
    pair.back = kind_is("step_served")
    released_then_cut(pair, after("step_end", "step_released", stop=kind_is("step_state")))
    connection = pair.wait_connection(2)
    connection.back.wait_stopped()
    assert pair.b.put(0, (5, 10)) == [(5, 11)]
    connection.there.flow()
    pair.wait_sent()
    connection.back.flow()
    assert pair.wait_ended().done == 1
    connection.there.wait_ended()
    assert pair.b.totals()[5] == 11
    assert pair.b.left_over() == []


def test_keys_that_were_missing_can_be_moved_to_the_same_host_again(pair: Pair) -> None:
    """What was announced again after the hand-over must not stand in the way of a later one."""
    pair.back = kind_is("step_served")
    released_then_cut(pair)
    connection = pair.wait_connection(2)
    connection.back.wait_stopped()
    pair.wait_sent()
    connection.back.flow()
    pair.back = lambda _: False
    assert pair.wait_ended().done == 1
    connection.there.wait_ended()
    assert pair.moved("pause", back=True).done == 1
    assert pair.moved("fetch").done == 1
    assert pair.b.totals() == FIRST


def came_back_unconfirmed(pair: Pair) -> None:
    """All keys are at host-0, which came from host-1 by a hand-over of which host-1 has not heard that it was served."""
    assert pair.moved("pause").done == 1
    pair.back = kind_is("step_served")
    pair.migrate("pause", back=True)
    pair.wait(lambda: pair.a.owned() == ALL)
    pair.back = lambda _: False


@pytest.mark.parametrize("protocol", ["live", "live-unordered", "standby", "pause"])
def test_copies_stay_though_the_target_has_not_forgotten_that_it_was_the_origin(pair: Pair, protocol: str) -> None:
    """A step is announced again when it is cut: what lies here from earlier goes the first time only."""
    came_back_unconfirmed(pair)
    assert pair.moved(protocol).done == 1
    assert pair.b.totals() == FIRST
    pair.connections[1].back.flow()
    pair.wait_ended(pair.b)
    assert pair.b.totals() == FIRST
    assert pair.b.left_over() == pair.a.left_over() == []


@pytest.mark.parametrize("protocol", ["live", "pause"])
def test_rows_of_keys_that_come_back_are_remembered_though_the_target_forgets_them_as_an_origin(
    pair: Pair, protocol: str
) -> None:
    """The ledger came with them: a task that is tried again is answered from it."""
    came_back_unconfirmed(pair)
    pair.there = kind_is("step_end")
    pair.migrate(protocol)
    pair.wait_connection(3).there.wait_stopped()
    pair.connections[2].there.wait_idle()
    pair.connections[1].back.flow()
    pair.wait_ended(pair.b)
    pair.connections[2].there.flow()
    assert pair.wait_ended().done == 1
    assert pair.b.put_rows(0, list(range(KEYS)), *FIRST.items()) == list(FIRST.items()), "as they were answered before"
    assert pair.b.totals() == FIRST


def test_the_end_of_a_step_is_not_taken_for_all_of_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something fails at the origin while it ships what was released: the next connection begins anew."""
    send = TargetConnection.send

    def fails(connection: TargetConnection, out: Queued) -> int:
        if out.message.kind == "announce_step" and connection.number == 1 and copied:
            raise RuntimeError("something nobody has thought of")
        copied.extend([out] if out.message.kind == "copy_marker" else ())
        return send(connection, out)

    copied: list[Queued] = []
    monkeypatch.setattr(TargetConnection, "send", fails)
    pair.migrate("live-unordered")
    assert pair.wait_ended().done == 1
    assert pair.b.totals() == FIRST


@pytest.mark.parametrize("protocol", ["pause", "fetch", "standby"])
def test_nothing_of_a_step_comes_after_it_was_aborted(
    pair: Pair, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another step is released and not confirmed, so the connection stays; what was to be shipped of this one does not go."""
    monkeypatch.setitem(PROTOCOLS, protocol, replace(PROTOCOLS[protocol], parcel_bytes=0))  # small steps stay apart
    halves = Units(frozenset((0, 1))), Units(frozenset((2, 3)))
    pair.back = kind_is("step_served")
    pair.there = lambda note: note["kind"] == "step_state" and note["step"] == 1
    name = pair.migrate(protocol, *halves, side_by_side=2)
    if protocol == "standby":
        pair.a.moves.hand_over_standby(messages.HandOverStandby(name))
    connection = pair.wait_connection(1)
    connection.there.wait_stopped()
    pair.wait(lambda: bool(pair.a.shared.instance.ownership and pair.a.shared.instance.ownership.outgoing))
    pair.a.moves.abort_migration(messages.AbortMigration(name, "enough"))
    pair.wait(lambda: pair.a.owned() == halves[1])
    connection.there.flow()
    pair.wait(lambda: pair.b.owned() == halves[0])
    connection.there.wait_sent("step_aborted")
    pair.wait_sent()
    assert pair.b.left_over() == []
    assert [unit for unit in halves[1] if pair.b.stand(unit) is not Stand.AWAY] == []
    connection.back.flow()
    told = pair.wait_ended()
    assert (told.done, told.dropped) == (1, 1)
    assert pair.a.left_over() == pair.b.left_over() == []
    assert pair.a.totals() | pair.b.totals() == FIRST


def test_what_timers_put_out_goes_with_the_last_keys_though_their_origin_restarts(pair: Pair) -> None:
    """It has let go of all keys before it has shipped any, and restarts: whoever owns the keys tells the lane then."""
    instance = pair.a.shared.instance
    rung = pa.record_batch([[-5], [1], [7]], schema=with_rows(instance.spec.output_schema))
    none = np.empty(0, np.int64)
    entry = Entry(none, none, rung, firing="host-0/0/1")
    instance.durable.change(lambda work: instance.durable.prepare_entry(work, "0", entry))
    pair.there = kind_is("step_end")
    pair.migrate("live-unordered")
    pair.wait_connection(1).there.wait_stopped()
    assert not pair.a.owned()
    pair.there = lambda _: False
    pair.a.restart()
    pair.wait(lambda: pair.b.owned() == ALL)
    pair.wait_ended()
    assert pair.b.shared.instance.ledger.firings("0") == [("host-0/0/1", 1)]


def test_batch_that_begins_anew_between_release_and_shipment_is_anew_in_the_copies_too(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later run of the query, at the only moment at which live-unordered has released and not shipped."""
    log, sync = pair.a.log, pair.a.log.sync
    later = BatchRef("q", "later", 0)

    def begin_anew(lsn: int) -> None:
        sync(lsn)
        instance = pair.a.shared.instance
        assert instance.ownership is not None
        if instance.ownership.outgoing and instance.progress.run != "later":
            with pair.a.shared.lock:
                instance.batches.revert(later)

    monkeypatch.setattr(log, "sync", begin_anew)
    assert pair.moved("live-unordered").dropped == 0
    assert pair.a.shared.instance.progress.run == "later"
    assert pair.b.totals() == {}, "rows of the earlier run are left"

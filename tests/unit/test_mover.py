"""The origin's thread by itself: what it does when something fails that nobody thought of."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from godwit.errors import CheckpointUnusable, MalformedRequest
from godwit.migration.events import Missing, Prepared, Served
from godwit.model.ownership import Ownership
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.handover.connection import Broken, Queued, Reached, Taken, TargetConnection
from godwit.runtime.handover.mover import Mover
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.state.changelog import Changelog
from tests.unit.test_instance import Sum, instance_of, rows, welcome

UNITS = Units.of(Unit("group", 1))


def test_what_was_released_is_told_whatever_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the thread to end, the target would never be confirmed, and the migration stay open until a restart."""
    log, recovered = Changelog.open(tmp_path)
    assert not list(recovered.parts())
    shared = SharedInstance(instance_of(Sum()))
    ownership = Ownership.initial("host-0", Routing.spread(["host-0"], 4))
    ownership.cut(UNITS, "host-1")
    ownership.release("m1/0", UNITS, "host-1")
    shared.instance.memory.ownership = ownership
    told, tries = threading.Event(), iter([MalformedRequest("not what was expected"), None])

    def connect(_: TargetConnection) -> bool:
        failure = next(tries)
        if failure is not None:
            raise failure
        return True

    def send(_: TargetConnection, out: Queued) -> int:
        if out.message.kind == "step_released":
            told.set()
        return 0

    monkeypatch.setattr(TargetConnection, "connect", connect)
    monkeypatch.setattr(TargetConnection, "send", send)
    port = HostServices("host-0", str(tmp_path), "token", "", log, lambda: 0, lambda: False)
    mover = Mover(port, shared, messages.StartMigration("m1", "sum", "host-1", "live", (UNITS,)), released={0: UNITS})
    mover.start()
    assert told.wait(10)
    mover.post(Served(0))
    mover.join(10)
    assert mover.ended
    assert not ownership.outgoing, "the target has confirmed it"
    assert "not what was expected" in mover.report().reason
    log.close()


def test_a_migration_ends_though_the_log_cannot_be_written_when_it_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full. The host ends too, and its next generation drops the rest of the step."""
    log, _ = Changelog.open(tmp_path)
    shared = SharedInstance(instance_of(Sum()))
    shared.instance.durable.journal = log
    ownership = Ownership.initial("host-0", Routing.spread(["host-0"], 4))
    ownership.cut(UNITS, "host-1")
    ownership.release("m1/0", UNITS, "host-1")
    shared.instance.memory.ownership = ownership
    told = threading.Event()

    def send(_: TargetConnection, out: Queued) -> int:
        told.set()
        return 0

    monkeypatch.setattr(TargetConnection, "connect", lambda _: True)
    monkeypatch.setattr(TargetConnection, "send", send)
    port = HostServices("host-0", str(tmp_path), "token", "", log, lambda: 0, lambda: False)
    mover = Mover(port, shared, messages.StartMigration("m1", "sum", "host-1", "live", (UNITS,)), released={0: UNITS})
    mover.start()
    assert told.wait(10)
    log.fail(CheckpointUnusable("no space left on device"))
    mover.post(Served(0))
    mover.join(10)
    assert mover.ended


def in_a_batch() -> tuple[SharedInstance, Units]:
    """An instance that has applied three rows of the batch in progress, and their keys."""
    shared = SharedInstance(instance_of(Sum()))
    instance, request = shared.instance, BatchRef("q", "r", 0)
    instance.memory.ownership = Ownership.initial("host-0", Routing.spread(["host-0"], 4))
    instance.open(request, "0", 0, welcome)
    batch, numbers, keys = rows((1, 0, 5), (5, 0, 6), (2, 0, 7))
    hashes = np.array([instance.key_codec.route_hash((key,)) for key in keys.tolist()], np.int64)
    instance.apply(request, "0", Chunk(batch, numbers, hashes))
    return shared, Units.of(*(Unit("key", route_hash) for route_hash in hashes.tolist()))


def listening(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """A target that is always there; gives what it is sent, up to something of this kind."""
    sent: queue.SimpleQueue[str] = queue.SimpleQueue()

    def send(connection: TargetConnection, out: Queued) -> int:
        bodies = sum(1 for _ in out.bodies or ())
        if isinstance(out.message, messages.SliceEnd):
            connection._queue.put(Taken(0.0, crowded=False))
            return 0
        sent.put(
            f"{out.message.kind} {bodies}"
            if out.message.kind in ("step_state", "state_before_batch")
            else out.message.kind
        )
        return 0

    def until(kind: str) -> list[str]:
        heard: list[str] = []
        while not heard or heard[-1] != kind:
            heard.append(sent.get(timeout=10))
        return heard

    monkeypatch.setattr(TargetConnection, "connect", lambda _: True)
    monkeypatch.setattr(TargetConnection, "send", send)
    return until


def test_after_the_cut_nothing_of_the_batch_is_left_to_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it did before the copy goes with the copy and what came after is replayed: rows wait for the rest only."""
    log, recovered = Changelog.open(tmp_path)
    assert not list(recovered.parts())
    shared, units = in_a_batch()
    until = listening(monkeypatch)
    port = HostServices("host-0", str(tmp_path), "token", "", log, lambda: 0, lambda: False)
    mover = Mover(port, shared, messages.StartMigration("m1", "sum", "host-1", "live", (units,)))
    mover.start()
    copied = until("copy_marker")
    assert copied[-3:] == ["state_before_batch 1", "step_ledger", "copy_marker"]
    mover.post(Reached(0, 0))
    assert until("step_end") == ["announce_step", "state_before_batch 0", "step_end"]
    mover.post(Prepared(0))
    until("step_released")
    mover.post(Served(0))
    mover.join(10)
    assert mover.ended
    log.close()


def test_a_target_that_has_lost_its_copies_gets_all_of_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Released before it is shipped: with the connection the copies are gone, and only the origin has the keys."""
    log, recovered = Changelog.open(tmp_path)
    assert not list(recovered.parts())
    shared, units = in_a_batch()
    until = listening(monkeypatch)
    port = HostServices("host-0", str(tmp_path), "token", "", log, lambda: 0, lambda: False)
    mover = Mover(port, shared, messages.StartMigration("m1", "sum", "host-1", "live-unordered", (units,)))
    mover.start()
    assert any(kind.startswith("step_state") for kind in until("copy_marker"))
    mover.post(Reached(0, 0))
    until("step_released")
    mover.post(Broken(ConnectionError("gone"), mover._connection.number))
    until("step_released")
    mover.post(Missing(0))
    assert any(kind.startswith("step_state") and not kind.endswith(" 0") for kind in until("step_end"))
    mover.post(Served(0))
    mover.join(10)
    assert mover.ended
    log.close()

"""Connections of one migration come one after another at its target, however late the end of one is noticed."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from godwit.runtime import messages
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.host.migration_service import MigrationService
from godwit.runtime.pacing.chunks_inside import ChunksInside
from godwit.transport import wire


class Connection:
    """Both ends of a stream: what the origin sends, and what it hears."""

    def __init__(self) -> None:
        self._sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.heard: queue.Queue[str] = queue.Queue()
        self.read = threading.Event()  # set when the target reads

    def send(self, kind: str) -> None:
        self._sent.put(wire.pack(kind))

    def end(self) -> None:
        self._sent.put(None)

    def read_chunk(self) -> Any:
        self.read.set()
        note = self._sent.get()
        if note is None:
            raise StopIteration
        return SimpleNamespace(app_metadata=note, data=None)

    def begin(self, schema: Any) -> None:
        return

    def write_metadata(self, note: bytes) -> None:
        self.heard.put(wire.unpack(note)["kind"])


def test_a_new_connection_waits_until_the_end_of_the_one_before_is_dealt_with(tmp_path: Path) -> None:
    shared: Any = SimpleNamespace(
        want_listeners=[], accepted_units={}, changed=threading.Condition(), chunks=ChunksInside()
    )
    port: Any = SimpleNamespace(host="host-1", checkpoint=str(tmp_path), log=None)
    receiver = Receiver(port, shared, "m1", "host-0")
    old, new = Connection(), Connection()
    threads = []
    for connection in (old, new):
        threads.append(threading.Thread(target=receiver.serve, args=(connection, connection, 1), daemon=True))
        threads[-1].start()
        connection.send("hello")
        if connection is old:
            assert old.heard.get(timeout=10) == "hello"
    old.end()
    threads[0].join(10)
    new.send("hello")
    for _ in range(2):
        assert new.heard.get(timeout=10) == "hello", "the end of the old connection does not silence the new one"
    new.end()
    threads[1].join(10)


def test_a_receiver_is_known_for_as_long_as_somebody_is_connected(tmp_path: Path) -> None:
    """What is wanted soon is asked of those that are known, also right after the connection before has ended."""
    shared: Any = SimpleNamespace(
        want_listeners=[],
        accepted_units={},
        changed=threading.Condition(),
        lock=threading.Lock(),
        chunks=ChunksInside(),
    )
    port: Any = SimpleNamespace(host="host-1", checkpoint=str(tmp_path), log=None)
    moves = MigrationService(port, lambda _: shared)
    opening = messages.OpenMigration("m1", "sum", "host-0", 1)
    old, new = Connection(), Connection()
    threads = []
    for connection in (old, new):
        threads.append(threading.Thread(target=moves.receive, args=(opening, connection, connection), daemon=True))
        threads[-1].start()
        assert connection.read.wait(10)
    old.end()
    threads[0].join(10)
    assert len(shared.want_listeners) == 1
    new.end()
    threads[1].join(10)
    assert shared.want_listeners == []


def test_what_is_heard_of_an_outcome_is_not_said_before_the_greeting(tmp_path: Path) -> None:
    """After a restart a target asks its origin about every step that it has prepared, while the origin connects again."""
    shared: Any = SimpleNamespace(
        want_listeners=[], accepted_units={}, changed=threading.Condition(), chunks=ChunksInside()
    )
    port: Any = SimpleNamespace(host="host-1", checkpoint=str(tmp_path), log=None)
    receiver = Receiver(port, shared, "m1", "host-0")
    connection = Connection()
    thread = threading.Thread(target=receiver.serve, args=(connection, connection, 1), daemon=True)
    thread.start()
    assert connection.read.wait(10), "it is connected, and nothing has been said"
    receiver.answers.send(messages.StepServed(0))
    connection.send("hello")
    assert connection.heard.get(timeout=10) == "hello"
    receiver.answers.send(messages.StepServed(1))
    assert connection.heard.get(timeout=10) == "step_served"
    connection.end()
    thread.join(10)

"""The sender of a host's backup: sends the host's log to the peer, and tells how much of it the peer has acknowledged.

This module decides when the backup stands (from then on answers wait for the peer, see acknowledgements.py) and when a peer
counts as lost. The driver chooses the peer; `Feed` in state/mirroring.py chooses what is sent in which order. One message is
under way at a time, and all bytes written meanwhile go with the next one, so that all answers that wait share one
acknowledgement.

A broken connection does not end a backup that stands: the peer still has what it acknowledged. The backup is given up only when
an answer would need an acknowledgement that cannot come, and this is recorded before the answer leaves.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from godwit import ports
from godwit.errors import GodwitError, HostUnavailable, MalformedRequest, StaleGeneration
from godwit.runtime.backup.acknowledgements import Acks
from godwit.runtime.backup.records import Record, Records
from godwit.runtime.handover.connection import CONNECTION_ERRORS
from godwit.runtime.host_services import HostServices
from godwit.runtime.liveness.leases import host_directory, read_lease
from godwit.runtime.messages import (
    BackupAcknowledged,
    BackupOpened,
    ClearBackup,
    OpenBackup,
    Ping,
    ReplaceManifest,
    SyncBackup,
    TidyBackups,
    WriteBackup,
)
from godwit.state.mirroring import Feed, LogPiece
from godwit.transport import bodies, line, typed
from godwit.transport.typed import Message

ACK_S: Final = 2.0  # a peer that takes longer counts as lost
ASK_S: Final = 5.0  # between two requests to the driver for the name of the peer
# After so long without anything to send: a peer that is being stopped says so, and compaction may have made files to send.
PING_S: Final = 0.5
RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 30.0  # before a peer that was too slow is tried again
FORGIVEN_S: Final = 60.0  # of standing, after which earlier slowness of the peer does not count any more
CALL_S: Final = 1.0


class BackupConnection:
    """One connection to the peer: a message, then its acknowledgement, and so on."""

    def __init__(self, address: str, token: str, host: str, generation: int) -> None:
        self._client = line.connect(address, token)
        typed.ask(self._client, Ping(), CALL_S)  # a stream to a stopped process would hang for a long time
        self._answers: ports.Queue[Message | BaseException] = ports.queue()
        self.since_s: float | None = ports.now_s()  # when the wait for an answer began; None: no answer is awaited
        self._writer, self._reader = typed.open_stream(self._client, OpenBackup(host, generation))
        self._writer.begin(bodies.SCHEMA)
        ports.thread(self._listen, "godwit-backup-in").start()

    def _listen(self) -> None:
        try:
            while True:
                header = self._reader.read_chunk().app_metadata
                self._answers.put(typed.unpack(header, BackupOpened, BackupAcknowledged))
        except (GodwitError, *CONNECTION_ERRORS) as error:
            self._answers.put(error)

    def opened(self) -> BackupOpened:
        answer = self._next_answer()
        if not isinstance(answer, BackupOpened):
            raise MalformedRequest(f"the peer opens a backup with {answer.kind!r}")
        return answer

    def _next_answer(self) -> Message:
        try:
            answer = self._answers.get(timeout=10 * ACK_S)
        except queue.Empty:
            raise HostUnavailable("the peer does not answer") from None
        if isinstance(answer, BaseException):
            raise answer
        self.since_s = None
        return answer

    def send(self, message: Message, body: Any = None) -> None:
        """Returns when the peer has acknowledged the message."""
        self.since_s = ports.now_s()
        bodies.write(self._writer, typed.pack(message), body)
        self._next_answer()

    def cancel(self) -> None:
        """Break the connection, from another thread: threads that write or wait here get an error."""
        with suppress(*CONNECTION_ERRORS):
            self._reader.cancel()

    def close(self) -> None:
        self.cancel()
        self._client.close()


class BackupSender:
    """`record`: the newest record, made by this process. `ask_peer`: asks the driver for the peer. `end`: ends the host."""

    def __init__(
        self,
        services: HostServices,
        record: Record,
        ask_peer: Callable[[], str | None],
        end: Callable[[GodwitError], None],
    ) -> None:
        self._services = services
        self._log = services.log
        self._records = Records(services.checkpoint, services.host)
        self._record = record
        self._ask_peer = ask_peer
        self._end = end
        self.acks = Acks(lambda: self._add_record("none", self._record.peer))
        self._chosen_peer: str | None = None  # the peer that the driver has chosen
        self._ask_at_s = 0.0
        self._connection: BackupConnection | None = None
        self._feed: Feed | None = None
        self._had: dict[str, int] = {}  # bytes per file that the peer had when the last connection ended
        self._slow = 0  # how many times in a row the peer was too slow
        self._stood_s = 0.0  # when the backup last began to stand
        self._stop = ports.event()
        self._thread = ports.thread(self._run, "godwit-backup")
        self._bytes_sent = self._acks_received = 0
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._log.backed_up = self.acks.wait
        self.watch()
        self._thread.start()

    def stop(self) -> None:
        """A backup that stands remains valid: its record says so, and this host answers nothing any more."""
        self._stop.set()
        self.acks.wake()
        self._cancel()
        if self._thread.ident is not None:
            self._thread.join(ACK_S)

    # -- called by the host's loop -----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Give up a peer that delays answers; ask the driver for the peer from time to time."""
        connection, now_s = self._connection, ports.now_s()
        unanswered_s = 0.0 if connection is None or connection.since_s is None else now_s - connection.since_s
        if max(unanswered_s, self.acks.longest_wait_s()) > ACK_S:
            self._too_slow(now_s)
            self.acks.broke()
            self._cancel()
        if now_s >= self._ask_at_s:
            self._ask_at_s = now_s + ASK_S
            with suppress(HostUnavailable):  # while the driver cannot be reached, the peer stays the same
                self._chosen_peer = self._ask_peer()

    def _too_slow(self, now_s: float) -> None:
        """Each time, answers have waited in vain, so a peer that is slow again is tried again later and later."""
        forgiven = self.acks.stands and now_s - self._stood_s > FORGIVEN_S
        self._slow = 1 if forgiven else self._slow + 1

    def _cancel(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cancel()

    # -- the sending thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            peer = self._chosen_peer
            try:
                if self.acks.stands and peer != self._record.peer:
                    self.acks.give_up()
                if peer is not None:
                    self._send_to(peer)
            except Exception as error:  # noqa: BLE001 after any error, answers must not wait for this thread for ever
                self._failure = error
                self._ask_at_s = 0.0
            finally:
                self._hang_up()
            if isinstance(self._failure, StaleGeneration) or self.acks.failure is not None:
                self._end_replaced_host()
                return
            self._pause(peer)

    def _pause(self, peer: str | None) -> None:
        """The pause grows while the same peer is too slow."""
        until_s = ports.now_s() + min(RETRY_S * 2**self._slow, RETRY_S_MAX)
        while not self._stop.wait(RETRY_S) and ports.now_s() < until_s:
            if self._chosen_peer != peer:
                self._slow = 0
                return

    def _end_replaced_host(self) -> None:
        error = self.acks.failure or self._failure
        assert isinstance(error, GodwitError)
        self.acks.fail(error)
        if not self._stop.is_set():
            self._end(error)

    def _hang_up(self) -> None:
        self.acks.broke()
        self._connection = None
        if self._feed is not None:
            self._had, self._feed = self._feed.have(), None
        if not self.acks.stands:
            self.acks.give_up()  # answers may wait already for a backup that was about to stand

    def _send_to(self, peer: str) -> None:
        """Returns or raises when the connection breaks, or when the driver has chosen another peer."""
        lease = read_lease(host_directory(self._services.checkpoint, peer))
        if lease is None or lease.incarnation != self._services.incarnation:
            raise HostUnavailable(f"{peer} does not serve", host=peer)
        connection = BackupConnection(lease.address, self._services.token, self._services.host, self._log.generation)
        self._connection = connection
        try:
            self._feed = self._open_feed(connection)
            self.acks.connected()
            self._stream(peer, connection, self._feed)
        finally:
            connection.close()

    def _stream(self, peer: str, connection: BackupConnection, feed: Feed) -> None:
        standing_from: int | None = None
        while not self._stop.is_set() and self._chosen_peer == peer:
            at = self._log.written()
            piece, sync = feed.next(at), self.acks.sync_wanted()
            if piece is not None or sync:
                self._send(connection, piece, sync)
            if piece is not None:
                feed.took(piece)
            if feed.reaches(at):
                self.acks.reached(at.lsn, sync)
                if not self.acks.waits:
                    self.acks.begin()
                    standing_from = self._log.written().lsn  # all answers that did not wait are before it
                if not self.acks.stands and standing_from is not None and at.lsn >= standing_from:
                    self._stand(peer)
            if piece is None and not self.acks.wait_news(PING_S):
                self._send(connection, None, False)

    def _open_feed(self, connection: BackupConnection) -> Feed:
        files = connection.opened().files
        feed = Feed(self._log.directory, self._log.generation, files)
        if any(files.get(file, 0) < size for file, size in self._had.items()):
            self.acks.give_up()  # the peer has lost bytes that it had acknowledged
        if feed.conflicts():
            self.acks.give_up()
            connection.send(ClearBackup())
            feed = Feed(self._log.directory, self._log.generation, {})
        return feed

    def _send(self, connection: BackupConnection, piece: LogPiece | None, sync: bool) -> None:
        if piece is None:
            connection.send(SyncBackup(sync))
        elif piece.manifest:
            connection.send(ReplaceManifest(sync), piece.data)
        else:
            connection.send(WriteBackup(piece.file, piece.offset, piece.ahead, sync), piece.data)
        self._bytes_sent += 0 if piece is None else len(piece.data)
        self._acks_received += 1

    def _stand(self, peer: str) -> None:
        before = self._record.peer
        self.acks.stand(lambda: self._add_record("kept", peer))
        self._failure = None
        self._stood_s = ports.now_s()
        if before not in (None, peer):  # in another thread, because answers wait for this one
            ports.thread(self._tidy_old_peer, "godwit-backup-tidy", (before,)).start()

    def _add_record(self, state: Any, peer: str | None) -> None:
        self._record = self._records.next(self._record, state, peer, self._log.generation)

    def _tidy_old_peer(self, peer: str) -> None:
        """Best effort: a peer removes unneeded backups also when it starts."""
        lease = read_lease(host_directory(self._services.checkpoint, peer))
        if lease is None:
            return
        client = line.connect(lease.address, self._services.token)
        with suppress(GodwitError):
            typed.ask(client, TidyBackups(), CALL_S)
        client.close()

    # -- status ------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        feed = self._feed
        state = "stands" if self.acks.stands else "none" if feed is None else "catching up"
        mean_ms, p99_ms = self.acks.waited_ms()
        return {
            "peer": self._chosen_peer if feed is not None or self.acks.stands else None,
            "state": state,
            "bytes_sent": self._bytes_sent,
            "log_bytes": self._log.bytes_written,
            "acks": self._acks_received,
            "wait_ms": round(mean_ms, 3),
            "wait_ms_p99": round(p99_ms, 3),
            "lag_bytes": None if feed is None else feed.lag_bytes(self._log.written()),
            "error": None if self._failure is None else str(self._failure),
        }


def no_backup(log_bytes: int) -> dict[str, Any]:
    """The status of a host that has no backup."""
    nothing = {"bytes_sent": 0, "log_bytes": log_bytes, "acks": 0, "wait_ms": 0.0, "wait_ms_p99": 0.0}
    return {"peer": None, "state": "none", **nothing, "lag_bytes": None, "error": None}

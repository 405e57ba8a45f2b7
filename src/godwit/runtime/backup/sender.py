"""A host's backup on a peer, the origin's side: sends what the log holds, and says how far the peer has it.

Decides when the backup stands (from then on answers wait for it, see backup_acks.py) and when a peer counts as lost. Which host
is the peer is the driver's word; what is sent in which order is the feed's (state/mirroring.py). One message is under way at a
time, and what was written meanwhile goes with the next: whoever waits then shares one acknowledgement.

A connection that breaks does not end a backup that stands: what was acknowledged is there. Only when something is to be
answered that the peer does not have, the backup is given up, and that is written down before the answer leaves.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from godwit import ports
from godwit.errors import GodwitError, HostUnavailable, StaleGeneration
from godwit.runtime.backup.acknowledgements import Acks
from godwit.runtime.backup.records import Record, Records
from godwit.runtime.handover import parcels
from godwit.runtime.handover.connection import GONE_PEER
from godwit.runtime.handover.order import Port
from godwit.runtime.liveness.leases import host_directory, read_lease
from godwit.state.mirroring import Feed, Piece
from godwit.transport import line, wire

ACK_S: Final = 2.0  # a peer that takes longer counts as lost
ASK_S: Final = 5.0  # between questions to the driver who the peer is
PING_S: Final = 0.5  # without news; a peer that stops can say so, and compaction may have left something to send
AGAIN_S: Final = 0.2
AGAIN_S_MAX: Final = 30.0  # before a peer that was too slow is tried again
FORGIVEN_S: Final = 60.0  # of standing, after which it does not matter that the peer was too slow before
CALL_S: Final = 1.0


class Line:
    """One connection to the peer: a message, then its acknowledgement."""

    def __init__(self, address: str, token: str, host: str, generation: int) -> None:
        self._client = line.connect(address, token)
        self._client.call("ping", timeout_s=CALL_S)  # a stream to a process that was stopped would hang for long
        self._heard: ports.Queue[dict[str, Any] | BaseException] = ports.queue()
        self.since_s: float | None = ports.now_s()  # that an answer is waited for
        self._writer, self._reader = self._client.exchange(backup=host, generation=generation)
        self._writer.begin(parcels.SCHEMA)
        ports.thread(self._listen, "godwit-backup-in").start()

    def _listen(self) -> None:
        try:
            while True:
                self._heard.put(wire.unpack(self._reader.read_chunk().app_metadata))
        except (GodwitError, *GONE_PEER) as error:
            self._heard.put(error)

    def answer(self) -> dict[str, Any]:
        try:
            heard = self._heard.get(timeout=10 * ACK_S)
        except queue.Empty:
            raise HostUnavailable("the peer says nothing") from None
        if isinstance(heard, BaseException):
            raise heard
        self.since_s = None
        return heard

    def say(self, kind: str, body: Any = None, **fields: Any) -> None:
        """Gone when it has been acknowledged."""
        self.since_s = ports.now_s()
        parcels.write(self._writer, wire.pack(kind, **fields), body)
        self.answer()

    def cancel(self) -> None:
        """From another thread: whoever writes or waits here finds the connection broken."""
        with suppress(*GONE_PEER):
            self._reader.cancel()

    def close(self) -> None:
        self.cancel()
        self._client.close()


class Backup:
    """`record`: the newest, which this process has made. `ask`: asks the controller. `end`: ends the host."""

    def __init__(self, port: Port, record: Record, ask: Callable[..., Any], end: Callable[[GodwitError], None]) -> None:
        self._port = port
        self._log = port.log
        self._records = Records(port.checkpoint, port.host)
        self._record = record
        self._ask = ask
        self._end = end
        self.acks = Acks(lambda: self._write_down("none", self._record.peer))
        self._wanted: str | None = None  # the peer that the driver names
        self._ask_at_s = 0.0
        self._line: Line | None = None
        self._feed: Feed | None = None
        self._had: dict[str, int] = {}  # what the peer had when the last connection ended
        self._slow = 0  # times in a row that the peer was
        self._stood_s = 0.0  # when it last began to stand
        self._stop = ports.event()
        self._thread = ports.thread(self._run, "godwit-backup")
        self._bytes_sent = self._acks_heard = 0
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._log.backed_up = self.acks.wait
        self.watch()
        self._thread.start()

    def stop(self) -> None:
        """What stands stays: the record says so, and nothing is answered any more."""
        self._stop.set()
        self.acks.wake()
        self._cancel()
        if self._thread.ident is not None:
            self._thread.join(ACK_S)

    # -- looked at by the host's loop --------------------------------------------------------------------------------

    def watch(self) -> None:
        """A peer that holds up answers is given up; the driver is asked for another from time to time."""
        line, now_s = self._line, ports.now_s()
        unanswered_s = 0.0 if line is None or line.since_s is None else now_s - line.since_s
        if max(unanswered_s, self.acks.longest_wait_s()) > ACK_S:
            self._too_slow(now_s)
            self.acks.broke()
            self._cancel()
        if now_s >= self._ask_at_s:
            self._ask_at_s = now_s + ASK_S
            with suppress(HostUnavailable):  # while the driver is away all stays as it is
                self._wanted = self._ask("backup_peer", timeout_s=CALL_S, host=self._port.host)["peer"]

    def _too_slow(self, now_s: float) -> None:
        """Each time, answers have waited in vain: so not every few seconds."""
        forgiven = self.acks.stands and now_s - self._stood_s > FORGIVEN_S
        self._slow = 1 if forgiven else self._slow + 1

    def _cancel(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.cancel()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            peer = self._wanted
            try:
                if self.acks.stands and peer != self._record.peer:
                    self.acks.give_up()
                if peer is not None:
                    self._keep_at(peer)
            except Exception as error:  # noqa: BLE001 whatever it is, answers must not wait for this thread for ever
                self._failure = error
                self._ask_at_s = 0.0
            finally:
                self._hang_up()
            if isinstance(self._failure, StaleGeneration) or self.acks.failure is not None:
                self._replaced()
                return
            self._pause(peer)

    def _pause(self, peer: str | None) -> None:
        """Longer after a peer that was too slow, unless there is another."""
        until_s = ports.now_s() + min(AGAIN_S * 2**self._slow, AGAIN_S_MAX)
        while not self._stop.wait(AGAIN_S) and ports.now_s() < until_s:
            if self._wanted != peer:
                self._slow = 0
                return

    def _replaced(self) -> None:
        error = self.acks.failure or self._failure
        assert isinstance(error, GodwitError)
        self.acks.fail(error)
        if not self._stop.is_set():
            self._end(error)

    def _hang_up(self) -> None:
        self.acks.broke()
        self._line = None
        if self._feed is not None:
            self._had, self._feed = self._feed.have(), None
        if not self.acks.stands:
            self.acks.give_up()  # those who wait because it was about to

    def _keep_at(self, peer: str) -> None:
        """Until the connection breaks, or the peer is to be another."""
        lease = read_lease(host_directory(self._port.checkpoint, peer))
        if lease is None or lease.incarnation != self._port.incarnation:
            raise HostUnavailable(f"{peer} does not serve", host=peer)
        self._line = line = Line(lease.address, self._port.token, self._port.host, self._log.generation)
        try:
            self._feed = self._begun(line)
            self.acks.connected()
            self._stream(peer, line, self._feed)
        finally:
            line.close()

    def _stream(self, peer: str, line: Line, feed: Feed) -> None:
        standing_from: int | None = None
        while not self._stop.is_set() and self._wanted == peer:
            at = self._log.written()
            piece, sync = feed.next(at), self.acks.sync_wanted()
            if piece is not None or sync:
                self._send(line, piece, sync)
            if piece is not None:
                feed.took(piece)
            if feed.reaches(at):
                self.acks.reached(at.lsn, sync)
                if not self.acks.waits:
                    self.acks.begin()
                    standing_from = self._log.written().lsn  # all that was answered without waiting is before it
                if not self.acks.stands and standing_from is not None and at.lsn >= standing_from:
                    self._stand(peer)
            if piece is None and not self.acks.wait_news(PING_S):
                self._send(line, None, False)

    def _begun(self, line: Line) -> Feed:
        files = line.answer()["files"]
        feed = Feed(self._log.directory, self._log.generation, files)
        if any(files.get(file, 0) < size for file, size in self._had.items()):
            self.acks.give_up()  # the peer has lost some of it
        if feed.conflicts():
            self.acks.give_up()
            line.say("clear")
            feed = Feed(self._log.directory, self._log.generation, {})
        return feed

    def _send(self, line: Line, piece: Piece | None, sync: bool) -> None:
        if piece is None:
            line.say("ping", sync=sync)
        elif piece.manifest:
            line.say("manifest", piece.data, sync=sync)
        else:
            line.say("piece", piece.data, file=piece.file, offset=piece.offset, ahead=piece.ahead, sync=sync)
        self._bytes_sent += 0 if piece is None else len(piece.data)
        self._acks_heard += 1

    def _stand(self, peer: str) -> None:
        before = self._record.peer
        self.acks.stand(lambda: self._write_down("kept", peer))
        self._failure = None
        self._stood_s = ports.now_s()
        if before not in (None, peer):  # in a thread of its own: answers wait for this one
            ports.thread(self._part_from, "godwit-backup-bye", (before,)).start()

    def _write_down(self, state: Any, peer: str | None) -> None:
        self._record = self._records.next(self._record, state, peer, self._log.generation)

    def _part_from(self, peer: str) -> None:
        """Best effort: it would find out by itself when it starts the next time."""
        lease = read_lease(host_directory(self._port.checkpoint, peer))
        if lease is None:
            return
        client = line.connect(lease.address, self._port.token)
        with suppress(GodwitError):
            client.call("tidy_backups", timeout_s=CALL_S)
        client.close()

    # -- looking in --------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        feed = self._feed
        state = "stands" if self.acks.stands else "none" if feed is None else "catching up"
        mean_ms, p99_ms = self.acks.waited_ms()
        return {
            "peer": self._wanted if feed is not None or self.acks.stands else None,
            "state": state,
            "bytes_sent": self._bytes_sent,
            "log_bytes": self._log.bytes_written,
            "acks": self._acks_heard,
            "wait_ms": round(mean_ms, 3),
            "wait_ms_p99": round(p99_ms, 3),
            "lag_bytes": None if feed is None else feed.lag_bytes(self._log.written()),
            "error": None if self._failure is None else str(self._failure),
        }


def no_backup(log_bytes: int) -> dict[str, Any]:
    """The status of a host that has none."""
    sent = {"bytes_sent": 0, "log_bytes": log_bytes, "acks": 0, "wait_ms": 0.0, "wait_ms_p99": 0.0}
    return {"peer": None, "state": "none", **sent, "lag_bytes": None, "error": None}

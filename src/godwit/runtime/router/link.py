"""One host as a lane sees it: a stream, what is unanswered on it, and the way back after a restart.

A host that has left for good is not waited for: its link is retired, and what it had not answered is given back. Who else
could take that is not decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from godwit import ports
from godwit.errors import HostUnavailable, StaleGeneration, StateUncertain
from godwit.runtime.liveness.leases import Lease, check_owner, host_directory, read_failure, read_lease, read_obituary
from godwit.runtime.liveness.slot_offers import FOR_LEASE_S, SlotOffers, TaskSlot
from godwit.runtime.liveness.wills import check_inherited
from godwit.runtime.processor.rows import Index
from godwit.runtime.router.pieces import Finish, Piece
from godwit.runtime.router.route import Route, Task
from godwit.runtime.router.stream import Stream
from godwit.transport import line, wire
from godwit.transport.flight import GONE

BREAKS_MAX = 20  # in a row without an answer: then the host refuses us for a reason that waiting does not mend
MEET_S = 1.0  # for a connection; a host that is busy has one waiting for it at once
AGAIN_S = 1.0  # after which an address that was lost is tried again: perhaps only the connection broke
# What ends a stream but not the work on it. A host that is fenced, or ends itself, has a successor or is about to have one.
LOST = (*GONE, StaleGeneration, StateUncertain)


class Link:
    """Sends messages in order and gives back their answers in order, whatever happens to the host in between."""

    def __init__(self, host: str, route: Route, task: Task, schema: pa.Schema, left: Callable[[str], bool]) -> None:
        self.host = host
        self.timers: dict[str, pa.RecordBatch] = {}  # what timers have put out, by firing
        self.retired = False
        self.missed = False  # the host was away: what it had to say may be another's to tell since
        self.begun: dict[str, Any] | None = None  # how the host has begun the batch
        self._route = route
        self._task = task
        self._schema = schema
        self._left = left
        self._directory = host_directory(route.checkpoint, host)
        self._slot = TaskSlot(route.controller, route.token, task.attempt)
        self._unanswered: deque[Piece | Finish] = deque()
        self._owed: deque[tuple[Stream | None, Piece]] = deque()  # answered (there), and perhaps not dealt with
        self._seen = 0
        self._answered: dict[int, int] = {}
        self._applied = 0  # rows that the host has answered and not refused
        self._lease: Lease | None = None
        self._stream: Stream | None = None
        self._begun = False  # a stream is there, and the host has not said yet that it is open
        self._finished = False
        self._deadline: float | None = None
        self._breaks = 0

    def meet(self) -> None:
        """Wait until the host is there, or has left for good; say nothing to it yet."""
        while (lease := self._wait_lease()) is not None:
            if line.answers(lease.address, MEET_S):
                self._deadline = None
                return
            self._lease = lease
        self._retire()

    def reach(self) -> None:
        """Ask for a stream if the host is up, and do not wait for its answer: several hosts can be asked before."""
        lease = self._read_lease()
        if lease is not None:
            try:
                self._begin(lease)
            except LOST as error:
                self._lost(error)

    def connect(self) -> None:
        """Open a stream to the host's newest generation and say again what it has not answered."""
        while True:
            lease = self._lease if self._begun else self._wait_lease()
            if lease is None:
                self._retire()
                return
            try:
                if not self._begun:
                    self._begin(lease)
                self._open(lease)
                return
            except LOST as error:
                self._lost(error)

    def _begin(self, lease: Lease) -> None:
        task, request = self._task, self._task.request
        self._lease = lease
        self._stream = Stream(
            self._directory,
            lease,
            self._slot,
            self._schema,
            operator=self._route.operator,
            scope=task.scope,
            query=request.query,
            run=request.run,
            batch=request.batch,
            lane=task.lane,
            carries=task.carries,
            answered=list(self._answered.items()),
        )
        self._seen, self._begun = 0, True

    def _open(self, lease: Lease) -> None:
        assert self._stream is not None
        self._begun = False
        if self._task.request.batch >= 0:
            header, outputs = self._stream.read("opened")
            self.timers = _by_firing(self.host, header.get("firings", ()), outputs)
            self._answered[lease.generation] = header["lsn"]
            self.begun = header
        self._hold_back()
        for message in self._unanswered:
            self._stream.write(message, 0)
        self._deadline = None

    def _hold_back(self) -> None:
        """A new stream knows nothing of what was refused on the one before, and the host may own it again by now.

        Later rows of such keys would then be applied before the refused ones, which are still on their way round.
        """
        pieces = [*(piece for _, piece in self._owed if not piece.dealt_with), *self._unanswered]
        refused = [hashes for piece in pieces if isinstance(piece, Piece) for hashes in piece.unapplied_hashes()]
        if not refused:
            return
        apart: Index = np.unique(np.concatenate(refused))
        for piece in [piece for piece in self._unanswered if isinstance(piece, Piece)]:
            piece.hold_back(apart)
            if not len(piece.batch):
                piece.give_up()
                self._unanswered.remove(piece)
                self._owed.append((None, piece))

    def _retire(self) -> None:
        """Who took over must know all that the host has answered here: what is sent on rests on it."""
        self.retired = self.missed = True
        check_inherited(self._directory, self._answered)
        for message in self._unanswered:
            message.give_up()
        self._unanswered.clear()

    def _wait_lease(self) -> Lease | None:
        """The address of a generation that we have not lost yet, or None if the host has left for good.

        Polled, because the host tells only the file system.
        """
        began = ports.now_s()
        self._deadline = self._deadline or began + self._route.wait_s
        pause_s = 0.002
        offers = SlotOffers(self._slot, FOR_LEASE_S)
        while True:
            lease = self._read_lease()
            if lease is not None and lease != self._lease:
                return lease
            if self._left(self.host):
                return None
            if lease is not None and ports.now_s() > began + AGAIN_S:
                return lease
            if ports.now_s() > self._deadline:
                reason = read_failure(self._directory)
                raise HostUnavailable(
                    f"{self.host} has not served for {self._route.wait_s:g} s{'' if reason is None else f': {reason}'}",
                    todo="Look at flock.status() and the executor's log; the task is retried by Spark",
                    operator=self._route.operator,
                    host=self.host,
                )
            if offers.claimed():
                self._slot.check()
            ports.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)

    def _read_lease(self) -> Lease | None:
        """A lease of a flock that another has replaced does not count; if ours was replaced or closed, stop here."""
        lease = read_lease(self._directory)
        if lease is not None and lease.incarnation == self._route.incarnation:
            return lease
        check_owner(self._route.checkpoint, self._route.incarnation)
        return None

    def _lost(self, error: BaseException) -> None:
        """The stream broke. If the host ended itself because of us, say why; otherwise go on with its successor."""
        self._begun, self.missed = False, True
        self._hang_up()
        self._slot.check()
        if self._deadline is None:  # it had been up: to find nobody at an address is no sign of refusal
            self._breaks += 1
        if self._breaks > BREAKS_MAX:
            raise HostUnavailable(
                f"{self.host} broke the connection {self._breaks} times without an answer: {error}", host=self.host
            )
        if self._lease is not None:
            reason = read_obituary(self._directory, self._lease.generation)
            if reason is not None:
                raise reason.at(host=self.host)

    def send(self, message: Piece | Finish) -> None:
        """A stream that has ended says why where it is read: there the message is sent again, after those before it."""
        if self.retired:
            message.give_up()
            return
        self._unanswered.append(message)
        if self._stream is not None:
            with suppress(*GONE):
                self._stream.write(message, self._seen_now())

    def _seen_now(self) -> int:
        """How many answers of this stream have been dealt with, up to the first that has not."""
        while self._owed and self._owed[0][1].dealt_with:
            stream, _ = self._owed.popleft()
            self._seen += stream is self._stream
        return self._seen

    def receive(self, message: Piece | Finish) -> None:
        """Wait until it is answered; answers to what was sent before it are kept with their pieces."""
        while not message.answered:
            self._receive_next()

    def _receive_next(self) -> None:
        answer = self._read_again()
        if answer is None:
            return
        header, data = answer
        message = self._unanswered.popleft()
        self._breaks = 0
        if "lsn" in header:
            assert self._lease is not None
            self._answered[self._lease.generation] = header["lsn"]
        if isinstance(message, Piece):
            self._applied += len(message.batch)
            message.answer(header, data)
            self._applied -= 0 if message.refused is None else len(message.refused)
            self._owed.append((self._stream, message))
        else:
            message.answer(header)
            self._finished = True

    def _read_again(self) -> tuple[dict[str, Any], pa.RecordBatch | None] | None:
        """The answer to the oldest unanswered message; None if none is left, because the host has left."""
        while self._unanswered:
            if self._stream is None:
                self.connect()
                continue
            try:
                return self._stream.read("outputs" if isinstance(self._unanswered[0], Piece) else "finished")
            except LOST as error:
                self._lost(error)
        return None

    def finish(self, rows: int | None, event_max_ms: int | None, hosts: list[str]) -> Finish:
        answered = list(self._answered.items())
        told = {"answered": answered, "hosts": hosts, "sent": self._applied}
        note = wire.pack("finish", rows=rows, event_max_ms=event_max_ms, **told)
        message = Finish(note)
        self.send(message)
        return message

    def close(self) -> None:
        if self._stream is not None and self._finished:
            self._stream.close()
            self._stream = None
        self._hang_up()

    def hang_up(self) -> None:
        """The next stream opens the lane anew, though the host is the same."""
        self._begun, self._lease = False, None
        self._hang_up()

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.hang_up()
            self._stream = None


def _by_firing(
    host: str, firings: Sequence[tuple[str, int]], outputs: pa.RecordBatch | None
) -> dict[str, pa.RecordBatch]:
    """A firing that was written down without a name, by an earlier version, is the host's own."""
    found: dict[str, pa.RecordBatch] = {}
    begin = 0
    for at, (name, rows) in enumerate(firings):
        assert outputs is not None, "outputs are told of that did not come"
        found[name or f"{host}//{at}"] = outputs.slice(begin, rows)
        begin += rows
    return found

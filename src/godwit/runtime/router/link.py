"""One host as a lane sees it: a stream, the requests that the host has not answered, and the reconnection after a restart.

A link does not wait for a host that has left for good: the link is retired, and its unanswered requests are given up. The link
does not decide which other host could take those rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from godwit import ports
from godwit.errors import HostUnavailable, StaleGeneration, StateUncertain
from godwit.runtime.liveness.leases import Lease, check_owner, host_directory, read_failure, read_lease, read_obituary
from godwit.runtime.liveness.slot_offers import FOR_LEASE_S, SlotOffers, TaskSlot
from godwit.runtime.liveness.wills import check_inherited
from godwit.runtime.messages import FinishLane, FireTimers, LaneFinished, LaneOpened, OpenLane, RowsApplied, TimersFired
from godwit.runtime.processor.rows import Index
from godwit.runtime.router.host_requests import FinishRequest, FireRequest, HostRequest, RowsRequest
from godwit.runtime.router.route import Route, Task
from godwit.runtime.router.stream import Stream
from godwit.transport import line
from godwit.transport.flight import GONE

BREAKS_MAX = (
    20  # in a row without an answer: then the host refuses this router for a reason that waiting does not remove
)
MEET_S = 1.0  # for a connection; a busy host accepts connections at once
AGAIN_S = 1.0  # after which a lost address is tried again: perhaps only the connection broke
# Errors that end a stream but not the work on it. A host that is fenced, or ends itself, has a successor or soon gets one.
LOST = (*GONE, StaleGeneration, StateUncertain)
Answer = RowsApplied | TimersFired | LaneFinished


class Link:
    """Sends requests in order and returns their answers in order, even if the host restarts in between."""

    def __init__(self, host: str, route: Route, task: Task, schema: pa.Schema, left: Callable[[str], bool]) -> None:
        self.host = host
        self.timers: dict[str, pa.RecordBatch] = {}  # outputs of timers, by firing
        self.retired = False
        self.missed = False  # the host was away: since then heirs may have outputs of its timers
        self.opened: LaneOpened | None = None  # how the host has begun the batch
        self._route = route
        self._task = task
        self._schema = schema
        self._left = left
        self._directory = host_directory(route.checkpoint, host)
        self._slot = TaskSlot(route.controller, route.token, task.attempt)
        self._unanswered: deque[HostRequest] = deque()
        # Answered on this stream, and perhaps not dealt with. The stream is None for requests that were never sent.
        self._owed: deque[tuple[Stream | None, RowsRequest]] = deque()
        self._seen = 0
        self._answered: dict[int, int] = {}  # the greatest lsn answered, by generation
        self._applied_rows = 0
        self._lease: Lease | None = None
        self._stream: Stream | None = None
        self._opening = False  # a stream is there, and its LaneOpened has not been read yet
        self._finished = False
        self._deadline: float | None = None
        self._breaks = 0

    def meet(self) -> None:
        """Wait until the host listens, or has left for good; do not open a stream yet."""
        while (lease := self._wait_lease()) is not None:
            if line.answers(lease.address, MEET_S):
                self._deadline = None
                return
            self._lease = lease
        self._retire()

    def reach(self) -> None:
        """Begin a stream if the host is up, and do not wait for its answer: so several hosts open the lane at once."""
        lease = self._read_lease()
        if lease is not None:
            try:
                self._begin(lease)
            except LOST as error:
                self._lost(error)

    def connect(self) -> None:
        """Open a stream to the host's newest generation and repeat the unanswered requests."""
        while True:
            lease = self._lease if self._opening else self._wait_lease()
            if lease is None:
                self._retire()
                return
            try:
                if not self._opening:
                    self._begin(lease)
                self._open(lease)
                return
            except LOST as error:
                self._lost(error)

    def _begin(self, lease: Lease) -> None:
        task, request = self._task, self._task.request
        first = OpenLane(
            self._route.operator,
            request.query,
            request.run,
            request.batch,
            task.lane,
            task.scope,
            task.carries,
            tuple(self._answered.items()),
            self._route.definition,
            task.batch_ms,
        )
        self._lease = lease
        self._stream = Stream(self._directory, lease, self._slot, self._schema, first)
        self._seen, self._opening = 0, True

    def _open(self, lease: Lease) -> None:
        assert self._stream is not None
        self._opening = False
        if self._task.request.batch >= 0:
            self.opened, outputs = self._stream.read(LaneOpened)
            self.timers |= _by_firing(self.host, self.opened.firings, outputs)
            self._answered[lease.generation] = self.opened.lsn
        self._hold_back()
        for request in self._unanswered:
            self._stream.write(request, 0)
        self._deadline = None

    def _hold_back(self) -> None:
        """Keep back rows of keys of which earlier rows were refused and are not applied yet.

        The host does not know what was refused on an earlier stream, and may own those keys again by now. It would apply the
        later rows before the refused ones.
        """
        requests = [*(request for _, request in self._owed if not request.dealt_with), *self._unanswered]
        rows_requests = [request for request in requests if isinstance(request, RowsRequest)]
        refused = [hashes for request in rows_requests for hashes in request.unapplied_hashes()]
        if not refused:
            return
        hashes: Index = np.unique(np.concatenate(refused))
        for request in [request for request in self._unanswered if isinstance(request, RowsRequest)]:
            request.hold_back(hashes)
            if not len(request.batch):
                request.give_up()
                self._unanswered.remove(request)
                self._owed.append((None, request))

    def _retire(self) -> None:
        """The heirs must know all that the host has answered here: later rows rest on it."""
        self.retired = self.missed = True
        check_inherited(self._directory, self._answered)
        for request in self._unanswered:
            request.give_up()
        self._unanswered.clear()

    def _wait_lease(self) -> Lease | None:
        """The address of a generation that this link has not lost yet, or None if the host has left for good.

        Polled, because a host announces itself in the file system only.
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
                raise self._unavailable()
            if offers.taken():
                self._slot.check()
            ports.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)

    def _unavailable(self) -> HostUnavailable:
        reason = read_failure(self._directory)
        return HostUnavailable(
            f"{self.host} has not served for {self._route.wait_s:g} s{'' if reason is None else f': {reason}'}",
            todo="Look at flock.status() and the executor's log; the task is retried by Spark",
            operator=self._route.operator,
            host=self.host,
        )

    def _read_lease(self) -> Lease | None:
        """Raises if this flock was replaced or closed. A lease of another flock does not count."""
        lease = read_lease(self._directory)
        if lease is not None and lease.incarnation == self._route.incarnation:
            return lease
        check_owner(self._route.checkpoint, self._route.incarnation)
        return None

    def _lost(self, error: BaseException) -> None:
        """The stream broke. If rows of this lane made the host end itself, raise why; else go on with its successor."""
        self._opening, self.missed = False, True
        self._hang_up()
        self._slot.check()
        if self._deadline is None:  # the host had been up; an address where nobody listens is no sign of refusal
            self._breaks += 1
        if self._breaks > BREAKS_MAX:
            raise HostUnavailable(
                f"{self.host} broke the connection {self._breaks} times without an answer: {error}", host=self.host
            )
        if self._lease is not None:
            reason = read_obituary(self._directory, self._lease.generation)
            if reason is not None:
                raise reason.at(host=self.host)

    def send(self, request: HostRequest) -> None:
        """If the stream has ended, the error is raised where the stream is read, and the request is sent again there."""
        if self.retired:
            request.give_up()
            return
        self._unanswered.append(request)
        if self._stream is not None:
            with suppress(*GONE):
                self._stream.write(request, self._seen_now())

    def _seen_now(self) -> int:
        """How many answers of this stream have been dealt with, up to the first one that has not."""
        while self._owed and self._owed[0][1].dealt_with:
            stream, _ = self._owed.popleft()
            self._seen += stream is self._stream
        return self._seen

    def receive(self, request: HostRequest) -> None:
        """Wait until it is answered; answers to earlier requests are stored with those requests."""
        while not request.answered:
            self._receive_next()

    def _receive_next(self) -> None:
        received = self._read_again()
        if received is None:
            return
        answer, data = received
        request = self._unanswered.popleft()
        self._breaks = 0
        if isinstance(request, RowsRequest):
            assert isinstance(answer, RowsApplied)
            self._take_answer(request, answer, data)
        elif isinstance(request, FireRequest):
            assert isinstance(answer, TimersFired)
            assert self._lease is not None
            self._answered[self._lease.generation] = answer.lsn
            self.timers |= _by_firing(self.host, answer.firings, data)
            request.answer(answer)
        else:
            assert isinstance(answer, LaneFinished)
            request.answer(answer)
            self._finished = True

    def _take_answer(self, request: RowsRequest, answer: RowsApplied, outputs: pa.RecordBatch | None) -> None:
        assert self._lease is not None
        self._answered[self._lease.generation] = answer.lsn
        self._applied_rows += len(request.batch)
        request.answer(answer, outputs)
        self._applied_rows -= 0 if request.refused is None else len(request.refused)
        self._owed.append((self._stream, request))

    def _read_again(self) -> tuple[Answer, pa.RecordBatch | None] | None:
        """The answer to the oldest unanswered request; None if there is none, because the host has left."""
        while self._unanswered:
            if self._stream is None:
                self.connect()
                continue
            try:
                match self._unanswered[0]:
                    case RowsRequest():
                        return self._stream.read(RowsApplied)
                    case FireRequest():
                        return self._stream.read(TimersFired)
                    case FinishRequest():
                        return self._stream.read(LaneFinished)
            except LOST as error:
                self._lost(error)
        return None

    def fire(self, message: FireTimers) -> FireRequest:
        request = FireRequest(message)
        self.send(request)
        return request

    def finish(self, rows: int | None, event_max_ms: int | None, hosts: Sequence[str]) -> FinishRequest:
        answered = tuple(self._answered.items())
        request = FinishRequest(FinishLane(rows, event_max_ms, self._applied_rows, answered, tuple(hosts)))
        self.send(request)
        return request

    def close(self) -> None:
        if self._stream is not None and self._finished:
            self._stream.close()
            self._stream = None
        self._hang_up()

    def hang_up(self) -> None:
        """The next stream opens the lane anew, though the host is the same."""
        self._opening, self._lease = False, None
        self._hang_up()

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.hang_up()
            self._stream = None


def _by_firing(
    host: str, firings: Sequence[tuple[str, int]], outputs: pa.RecordBatch | None
) -> dict[str, pa.RecordBatch]:
    """Names without a host are of this host: of a batch DataFrame, whose keys do not move, or written by an earlier version."""
    by_name: dict[str, pa.RecordBatch] = {}
    begin = 0
    for at, (name, rows) in enumerate(firings):
        assert outputs is not None, "the host names firings and sends no outputs"
        full_name = name or f"//{at}"
        by_name[f"{host}{full_name}" if full_name.startswith("/") else full_name] = outputs.slice(begin, rows)
        begin += rows
    return by_name

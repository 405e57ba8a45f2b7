"""When copying works, and for how long: in slices of about a millisecond, between chunks of rows.

Copying shares the interpreter, the lock of the instance and the cores with rows. So no rate is given: a slice begins when no
chunk of rows is in the process, and after a pause. How long the pause is follows from what rows have to wait right now. Nobody
has to measure rows for that: a thread that wakes up from a pause waits for a core and for Python's lock as a thread does that
gets rows. The later the thread of the copying wakes up, the longer the next pauses are.

The target has rows, too. It gives way to them before each message, and answers each slice when it has been taken up. Few slices
are under way at a time, and the work of the target counts for the pauses of the origin, so the slower of the two sets the pace,
and forwarded rows never stand in line behind more than these slices.

While no rows come there are no pauses. Every wait has a limit, so copying ends however many rows come (I6). Decides nothing
about what is copied, and is not asked when rows wait for the hand-over itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from godwit import ports
from godwit.runtime.pacing.chunks_inside import ChunksInside

SLICE_S: Final = 0.001  # of work at a time
SHARE_FIRST, SHARE_MIN, SHARE_MAX = 0.4, 0.2, 0.5  # of the time of a thread that copies while rows come
GIVE_WAY_S: Final = 0.003  # the longest wait for chunks before a slice
UNDER_WAY_MAX: Final = 2  # slices that are sent and not yet taken up
ANSWER_S: Final = 0.5  # how long to wait for an answer before looking around
LATE_S: Final = 0.001  # a thread that wakes up later than this shows that rows wait, too
SLOWER, FASTER = 0.7, 1.1  # the next share of time
PAUSE_MAX_S: Final = 0.05
ITEMS_MIN, ITEMS_MAX = 64, 256  # keys of a slice: fewer cost more to send than they are worth


class Turns:
    """The turns of one thread. `items`: how many keys about fill a slice.

    Work is time on a core: on a busy machine a slice takes longer, and pauses as much longer would help nobody.
    """

    def __init__(self, chunks: ChunksInside) -> None:
        self.items = ITEMS_MAX // 2
        self._chunks = chunks
        self._share = SHARE_FIRST
        self._worked_s = 0.0  # since the last pause
        self._theirs_s = 0.0  # work of the target, of which was heard since the last pause
        self._worked_items = 0
        self._due_s: float | None = None  # when the present pause ends
        self._entered = chunks.entered
        self._under_way = 0
        self._crowded = False  # the target says that rows leave it no time

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work of a slice. A slice may be made of several works, one after another."""
        began_s = ports.worked_s()
        try:
            yield
        finally:
            self._worked_s += ports.worked_s() - began_s

    def worked(self, worked_s: float) -> None:
        """Work that was measured elsewhere."""
        self._worked_s += worked_s

    def count(self, items: int) -> None:
        """So many keys are in this slice."""
        self._worked_items += items

    def sent(self) -> None:
        """A slice is sent, and the target will say when it has taken it up."""
        self._under_way += 1

    def taken(self, took_s: float, crowded: bool) -> None:
        """The target has taken up a slice, after so much work."""
        self._under_way = max(0, self._under_way - 1)
        self._theirs_s += took_s
        self._crowded |= crowded

    def forget_sent(self) -> None:
        """The connection has ended: no answers come any more."""
        self._under_way = 0

    def pause_s(self) -> float:
        """How long the thread has to wait before the next slice, or for an answer; 0: no more."""
        if self._under_way >= UNDER_WAY_MAX:
            return ANSWER_S
        now_s = ports.now_s()
        if self._due_s is None:
            self._due_s = now_s + self._pause_after_work()
        return max(0.0, self._due_s - now_s)

    def _pause_after_work(self) -> float:
        entered, self._entered = self._entered, self._chunks.entered
        worked_s, theirs_s = self._worked_s, self._theirs_s
        self._worked_s = self._theirs_s = 0.0
        if self._worked_items:
            self._fit(self._worked_items, max(worked_s, theirs_s))
            self._worked_items = 0
        if entered == self._entered:
            return 0.0  # no rows came meanwhile
        return min(PAUSE_MAX_S, (worked_s + theirs_s) * (1 / self._share - 1))

    def _fit(self, items: int, took_s: float) -> None:
        """Half or twice as many at most: a slice may have been interrupted."""
        fitting = items * SLICE_S / max(took_s, SLICE_S / 100)
        self.items = int(min(ITEMS_MAX, max(ITEMS_MIN, items / 2, min(fitting, 2 * items))))

    def begin(self, woken: bool) -> None:
        """Begin a slice: give way to chunks that are here. `woken`: by the end of a pause, so how late this is counts."""
        late = woken and self._due_s is not None and ports.now_s() - self._due_s > LATE_S
        self._due_s = None
        crowded = not self._chunks.wait_none(GIVE_WAY_S) or self._crowded
        self._crowded = False
        if woken or crowded:
            share = self._share * (SLOWER if late or crowded else FASTER)
            self._share = min(SHARE_MAX, max(SHARE_MIN, share))

    def wait(self, idle: ports.Event | None = None) -> None:
        """Pause, and begin; `idle` ends the pause."""
        pause_s = self.pause_s()
        if pause_s and idle is None:
            ports.sleep(pause_s)
        elif pause_s and idle is not None:
            idle.wait(pause_s)
        self.begin(woken=pause_s > 0)


class Breaths:
    """The turns of work that asks, again and again, whether it may go on: called between two small steps.

    `stopping` ends a pause.
    """

    def __init__(self, chunks: ChunksInside, stopping: ports.Event) -> None:
        self._turns = Turns(chunks)
        self._stopping = stopping
        self._began_s: float | None = None  # when the present slice began, in time on a core

    def begin(self) -> None:
        """What this thread did before is not work of a slice."""
        self._began_s = ports.worked_s()

    def __call__(self) -> None:
        assert self._began_s is not None, "a slice has begun"
        worked_s = ports.worked_s() - self._began_s
        if worked_s >= SLICE_S:
            self._turns.worked(worked_s)
            self._turns.wait(self._stopping)
            self.begin()


class SliceTime:
    """How long the target works on the messages of a slice. Used by one thread at a time."""

    def __init__(self, chunks: ChunksInside) -> None:
        self._chunks = chunks
        self._worked_s = 0.0
        self._began_s = 0.0
        self._crowded = False

    def begin(self) -> None:
        """Give way to chunks before a message that nobody waits for."""
        self._crowded |= not self._chunks.wait_none(GIVE_WAY_S)

    def __enter__(self) -> None:
        self._began_s = ports.worked_s()

    def __exit__(self, *_: object) -> None:
        self._worked_s += ports.worked_s() - self._began_s

    def end(self) -> tuple[float, bool]:
        """Milliseconds of work since the slice before, and whether chunks never left this host alone."""
        worked_ms, crowded = round(self._worked_s * 1000, 3), self._crowded
        self._worked_s, self._crowded = 0.0, False
        return worked_ms, crowded

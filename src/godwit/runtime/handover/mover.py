"""The origin's side of a migration on a host: a thread that runs the protocol's machine and carries out its effects.

Everything that goes to the target goes through one line, and what is put in line is put there under the instance's lock: so the
target hears of copies and of the rows applied after them in the order in which they happened. What is large is sent in slices
while the line is empty, and what is said of a step stays behind the slices of that step: effects leave in the order given.
Decides nothing that the machine decides, nor what is told of a key (`luggage`): it knows when it is sent, and how a step is
released.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heapify
from typing import Any

import numpy as np

from godwit import ports
from godwit.errors import Bug, GodwitError
from godwit.migration.events import (
    AbortAsked,
    Begun,
    CaughtUp,
    Copied,
    Copy,
    Cut,
    Effect,
    End,
    Event,
    Forget,
    Lend,
    Offer,
    PeerBack,
    PeerLost,
    Release,
    Released,
    Resume,
    Served,
    Ship,
    TakeBack,
    TargetGone,
    TellAborted,
    TellReleased,
    Waiting,
)
from godwit.migration.origin import PROTOCOLS, Origin, Phase, with_timers
from godwit.model.progress import Progress
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.handover.connection import (
    GONE_PEER,
    RETRY_S,
    Answered,
    Broken,
    Failed,
    Line,
    LostPeer,
    Peer,
    Queued,
    Reached,
)
from godwit.runtime.handover.forwarding import Following, Select
from godwit.runtime.handover.order import Port
from godwit.runtime.handover.shipment import Luggage
from godwit.runtime.handover.switch_interval import prompt
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.liveness.wills import last_owned
from godwit.runtime.memory.ownership_columns import AWAY, selects
from godwit.state.keys import Key
from godwit.state.ledger import Entry

FORGET_KEYS = 250  # dropped at a time: about a millisecond under the instance's lock
BEHIND_ROWS_MAX = 5_000  # forwarded and not yet replayed, below which the target counts as caught up


@dataclass(slots=True)
class Figures:
    """What a migration has done so far."""

    began_s: float
    began_ms: int
    ended_ms: int | None = None
    keys_total: int = 0
    keys: int = 0
    bytes: int = 0
    rows_forwarded: int = 0
    bytes_forwarded: int = 0
    moved: dict[Unit, int] = field(default_factory=dict)
    phases: list[tuple[str, float]] = field(default_factory=list)


class Mover:
    def __init__(
        self,
        port: Port,
        shared: SharedInstance,
        order: messages.StartMigration,
        released: dict[int, Units] | None = None,
    ) -> None:
        self.order = order
        self.failure: GodwitError | None = None
        self._port = port
        self._shared = shared
        self.units = union(order.steps)
        if released is None:
            with shared.lock:
                _ownership(shared).begin_move(self.units)
        self._luggage = Luggage(shared, self.units, self._found)
        self._resumed = released is not None
        protocol = PROTOCOLS[order.protocol]
        self._protocol = protocol if shared.instance.spec.time_mode == "none" else with_timers(protocol)
        self._machine = Origin.resumed(self._protocol, released or {})
        self._line: Line = ports.queue()
        self._peer = Peer(port, order, self._line)
        self._work: deque[tuple[int, Iterator[None]]] = deque()  # by step: what is being copied or shipped, in slices
        self._chores: deque[tuple[int, Units]] = deque()  # steps that the target has, to be forgotten
        self._following: dict[int, Following] = {}
        self._copied: dict[int, set[Key]] = {}  # by step, with the keys it has
        self._told_early: set[int] = set()  # steps of which the target has the batch in progress
        self._began = self._resumed
        self._farewell: list[
            tuple[str, Entry]
        ] = []  # what timers put out, of an origin that has given away its last unit
        self._farewell_in = Progress()  # the batch of which that is, and its run
        self.news = ports.condition()
        self.news_count = 0
        self.figures = Figures(ports.now_s(), port.clock_ms())
        self._thread = ports.thread(self._run, f"godwit-mover-{order.id}")

    # -- what others see ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._peer.idle.set()
        self._thread.join(timeout_s)

    def post(self, event: Event) -> None:
        self._line.put(event)

    @property
    def ended(self) -> bool:
        return self.figures.ended_ms is not None

    def outcome(self, number: int) -> str:
        """For a target that asks whether a step that was not released is still open."""
        if self.ended or not self._began:
            return "kept" if self.ended else "open"
        step = next((step for step in self._machine.steps if step.number == number), None)
        return "kept" if step is None or step.phase.name == "DROPPED" else "open"

    def report(self) -> messages.MigrationReport:
        figures, steps = self.figures, self._machine.steps
        done = sum(step.phase.name == "DONE" for step in steps)
        waits = self._shared.waits(figures.began_ms)
        return messages.MigrationReport(
            self.order.id,
            "ended" if self.ended else "running",
            self.order.protocol,
            self.order.target,
            steps=len(steps) or len(self.order.steps),
            done=done,
            dropped=sum(step.phase.name == "DROPPED" for step in steps),
            reason=str(self.failure) if self.failure else self._machine.reason,
            keys=figures.keys,
            keys_total=figures.keys_total,
            bytes=figures.bytes,
            rows_forwarded=figures.rows_forwarded,
            bytes_forwarded=figures.bytes_forwarded,
            rows_applied=self._luggage.noting.rows,
            waits=waits,
            phases=[[name, round(at_ms, 2)] for name, at_ms in figures.phases],
            moved=dict(figures.moved),
            began_ms=figures.began_ms,
            ended_ms=figures.ended_ms,
        )

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not self._resumed:
                self._guarded(self._prepare)
            while not self._over():
                self._guarded(self._go_on)
        finally:
            self._peer.disconnect()
            while self._chores and not self._port.stopping():
                self._forget(*self._chores.popleft())
            self._stop_following()
            self._note("ended")

    def _guarded(self, job: Callable[[], None]) -> None:
        """Whatever fails, what can still be dropped must not stay held, and what was released must be told all the same."""
        try:
            job()
        except Exception as error:  # noqa: BLE001 see above
            told = error if isinstance(error, GodwitError) else Bug(f"{type(error).__name__}: {error}")
            self.failure = self.failure or told.at(host=self._port.host, operator=self.order.operator)
            self._hang_up(AbortAsked(str(error)))
            self._peer.idle.wait(RETRY_S)

    def _go_on(self) -> None:
        if self._peer.connect():
            with prompt():
                self._handle(PeerBack() if self._began else Begun())
                self._converse()
        else:
            self._hear_aborts()
            self._look_for_will()

    def _look_for_will(self) -> None:
        """A target that is lost for good confirms nothing. What it owned last tells what became of the steps released to it.

        Of steps that were not released the driver says what is to become of them.
        """
        last = last_owned(host_directory(self._port.checkpoint, self.order.target), self.order.operator)
        if last is None:
            return
        for step in self._machine.steps:
            released = _ownership(self._shared).outgoing.get(f"{self.order.id}/{step.number}")
            if released is not None and step.phase in (Phase.RELEASED, Phase.SHIPPED):
                served = last.served(released.epochs)
                self._handle(Served(step.number) if served else TargetGone(step.number))

    def _over(self) -> bool:
        return self._port.stopping() or self._machine.ended

    def _converse(self) -> None:
        """Until all is done or the connection breaks. What was in line for it goes with it; facts stay."""
        try:
            while not self._over():
                self._next()
        except (LostPeer, *GONE_PEER):
            self._hang_up(PeerLost())

    def _hang_up(self, event: Event) -> None:
        """With the connection the target's copies are gone: whoever is to have the state after that is sent all of it.

        What was in line for it goes too: on the next connection the end of a step would be taken for all of it.
        """
        self._peer.disconnect()
        self._work.clear()
        self._copied.clear()
        self._told_early.clear()
        with suppress(GodwitError):
            self._handle(event)
        for heard in self._peer.purge():
            self._line.put(heard)

    def _hear_aborts(self) -> None:
        """While there is no target to talk to, what is asked of us is still heard."""
        for event in self._peer.purge():
            if isinstance(event, AbortAsked):
                self._handle(event)
            else:
                self._line.put(event)

    def _next(self) -> None:
        """What is in line goes first; where nothing is, the next slice of what is being copied or shipped."""
        try:
            busy = bool(self._work or self._chores)
            item = self._line.get(block=not busy, timeout=None if busy else 0.5)
        except queue.Empty:
            if self._work:
                if next(self._work[0][1], self) is self:  # it has come to its end
                    self._work.popleft()
            elif self._chores:
                self._forget(*self._chores.popleft())
            return
        if isinstance(item, Event):
            self._handle(item)
        else:
            self._send(item)

    def _send(self, out: Queued) -> None:
        if self._protocol.until_asked:  # its copies may outlive this host: they must not be ahead of the log
            with self._shared.lock:
                lsn = self._shared.lsn
            self._port.log.sync(lsn)
            out = replace(out, message=replace(out.message, written=(self._port.log.generation, lsn)))
        sent = self._peer.send(out)
        if out.forwarded:
            self.figures.rows_forwarded += out.forwarded
            self.figures.bytes_forwarded += sent
        else:
            self.figures.bytes += sent

    def _handle(self, event: Event) -> None:
        match event:
            case Broken(error, connection):
                if connection == self._peer.connection:
                    raise LostPeer(str(error))
                return
            case Answered(answer, connection):
                if connection == self._peer.connection or isinstance(answer, (Served, Failed)):  # those stay true
                    self._handle(answer)
                return
            case Failed(error):
                self.failure = error
                event = AbortAsked(str(error))
            case Reached(step, rows):
                self._reached(step, rows)
                return
            case Begun():
                self._began = True
            case Waiting(_, rows, _):
                self.figures.rows_forwarded += rows  # their routers send them to the target
        for effect in self._machine.on(event):
            self._do(effect)
        self._tell_news()

    def _reached(self, step: int, rows: int) -> None:
        """The target has come to a marker. If much was forwarded since, it gets another."""
        following = self._following.get(step)
        if following is None:
            return
        if following.rows - rows <= BEHIND_ROWS_MAX:
            self._handle(CaughtUp(step))
        else:
            self._line.put(self._marker(step, following))

    def _marker(self, step: int, following: Following) -> Queued:
        """When the target comes to it, it has all that was forwarded before."""
        batch = self._shared.instance.progress.batch
        return Queued(messages.CopyMarker(step, following.rows, batch))

    def _tell_news(self) -> None:
        with self.news:
            self.news_count += 1
            self.news.notify_all()

    def _note(self, phase: str) -> None:
        """When something was last done: what a migration's time goes into."""
        self.figures.phases.append((phase, (ports.now_s() - self.figures.began_s) * 1000))
        if phase == "ended":
            self.figures.ended_ms = self._port.clock_ms()
            self._tell_news()

    # -- getting ready -----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        with self._shared.lock:
            self._shared.event_listeners.append(self.post)
        self._luggage.index()
        self.figures.keys_total = len(self._luggage)
        with self._shared.lock:
            sizes = self._luggage.sizes(self.order.steps)
        self._machine = Origin(self._protocol, self.order.steps, sizes, self.order.side_by_side)
        self._note("indexed")

    def _found(self, key: Key, route_hash: int) -> None:
        for following in self._following.values():
            following.found(key, route_hash)

    # -- effects -----------------------------------------------------------------------------------------------------

    def _do(self, effect: Effect) -> None:
        match effect:
            case Lend(units):
                self._change(lambda ownership: ownership.lend(units, self.order.target))
            case Copy(step, units, forward):
                self._work.append((step, self._copy(step, units, forward)))
            case Cut(_, units):
                self._change(lambda ownership: ownership.cut(units, self.order.target))
            case Ship(step, units):
                self._ship(step, units)
            case Release(step, units):
                self._release(step, units)
            case TakeBack(step, units):
                self._take_back(step)
            case Resume(step, units):
                self._resume(step, units)
            case Forget(step, units):
                self._cancel(step)
                self._chores.append((step, units))  # nobody waits for it
            case _:
                self._tell(effect)

    def _tell(self, effect: Effect) -> None:
        match effect:
            case Offer(units):
                self._line.put(Queued(messages.OfferUnits(units)))
            case TellReleased(step):
                epochs = _ownership(self._shared).outgoing[f"{self.order.id}/{step}"].epochs
                self._put(step, Queued(messages.StepReleased(step, epochs)))
            case TellAborted(step, units):
                self._put(step, Queued(messages.StepAborted(step, units)))
            case End():
                return
            case _:
                raise AssertionError(effect)

    def _put(self, step: int, out: Queued) -> None:
        """What is said of a step goes in line, or behind the slices of that step that are still to be sent."""
        last = max((at for at, (of, _) in enumerate(self._work) if of == step), default=None)
        if last is None:
            self._line.put(out)
        else:
            self._work.insert(last + 1, (step, self._shipping([out])))

    def _cancel(self, step: int) -> None:
        """Nobody waits any more for what is still to be copied or shipped of a step."""
        self._work = deque((of, work) for of, work in self._work if of != step)

    def _change(self, change: Callable[[Any], None]) -> None:
        with self._shared.changed:
            change(_ownership(self._shared))
            self._shared.changed.notify_all()

    def _copy(self, step: int, units: Units, forward: str) -> Iterator[None]:
        """Slices of keys in the order of their hashes; what is behind the frontier is followed from there on."""
        select = selects(units, _ownership(self._shared))
        following = Following(self._shared, self._line, step, select, forward, self.order.check)
        with self._shared.lock:
            self._line.put(self._luggage.announced(self.order.id, step, units))
            for key, route_hash in self._luggage.of(units).items():
                following.pending.append((route_hash, len(following.pending), key))
            heapify(following.pending)
            following.keys = {key for _, _, key in following.pending}
            self._following[step] = following
            self._shared.instance.followers.append(following)
        while True:
            with self._shared.lock:
                keys = following.next_slice()
                if not keys:
                    if forward == "rows":
                        self._tell_early(step, select, following.keys)
                    self._line.put(self._marker(step, following))
                    self._copied[step] = following.keys
                    self._line.put(Copied(step))
                    break
                self._line.put(self._luggage.state(step, keys))
            yield
        self._note("copied")

    def _tell_early(self, step: int, select: Select, keys: Collection[Key]) -> None:
        """What the batch in progress has done so far. The target replays the rest, so that at the cut nothing of it is left."""
        keys = self._luggage.with_gone(keys, select)
        for out in self._luggage.of_batch(step, keys, self._shared.instance.ledger.of(select)):
            self._line.put(out)
        self._told_early.add(step)

    def _ship(self, step: int, units: Units) -> None:
        """All that the target does not have of the step. Nothing of it changes any more, so it is taken at once."""
        instance, ownership, luggage = self._shared.instance, _ownership(self._shared), self._luggage
        with self._shared.lock:
            select = selects(units, ownership)
            copied = self._copied.get(step)  # found before the cut: rows wait from there on
            keys: Collection[Key] = copied if copied is not None else luggage.found(units, select)
            out = [luggage.announced(self.order.id, step, units)]
            if copied is None:
                out += [self._backup(step)] if self.order.source == "backup" else luggage.all_state(step, keys)
            last = not (ownership.mine() - units)
            farewell = self._farewell if instance.progress.same_attempt(self._farewell_in) else []
            timers = farewell or list(instance.ledger.timers()) if last else []
            early = copied is not None and step in self._told_early
            entries = timers if early else [*instance.ledger.of(select), *timers]
            out += luggage.of_batch(step, () if early else luggage.with_gone(keys, select), entries)
            out.append(luggage.rest(self.order.id, step, units))
        self._port.log.flush(self._shared.lsn)
        if copied is not None:
            for item in out:
                self._line.put(item)
        else:
            self._work.append((step, self._shipping(out)))

    def _backup(self, step: int) -> Queued:
        """Where the target finds the state by itself."""
        directory = str(host_directory(self._port.checkpoint, self._port.host))
        return Queued(messages.StepBackup(step, directory, self._shared.lsn))

    def _shipping(self, out: list[Queued]) -> Iterator[None]:
        """Over with the last of it: what is said of the step after that need not wait for a turn."""
        *slices, last = out
        for item in slices:
            self._send(item)
            yield
        self._send(last)

    def _release(self, step: int, units: Units) -> None:
        instance, ownership = self._shared.instance, _ownership(self._shared)
        with self._shared.changed:
            self._unfollow(step)
            ownership.release(f"{self.order.id}/{step}", units, self.order.target)
            if not ownership.mine():  # what timers have put out is answered for by the last target from now on
                if not instance.progress.same_attempt(self._farewell_in) or not self._farewell:
                    self._farewell, self._farewell_in = list(instance.ledger.timers()), instance.progress
                instance.ledger.drop(lambda hashes: np.zeros(len(hashes), np.bool_), timers=True)
            lsn = instance.write([instance.own_part()])
            self._shared.changed.notify_all()
        self._port.log.sync(lsn)
        self._line.put(Released(step))
        self._note("released")

    def _take_back(self, step: int) -> None:
        instance = self._shared.instance
        with self._shared.changed:
            _ownership(self._shared).take_back(f"{self.order.id}/{step}")
            if instance.progress.same_attempt(self._farewell_in):
                for lane, entry in self._farewell:
                    instance.ledger.record(lane, entry)
                self._farewell = []
            lsn = instance.write([instance.own_part()])
            self._shared.changed.notify_all()
        self._port.log.sync(lsn)

    def _resume(self, step: int, units: Units) -> None:
        """If the target only has to wait for the next batch, it follows on."""
        with self._shared.changed:
            if self._machine.phase(step) is not Phase.WAITING:
                self._cancel(step)
                self._unfollow(step)
            _ownership(self._shared).resume(units)
            self._shared.changed.notify_all()

    def _forget(self, step: int, units: Units) -> None:
        """The target has it: drop the state, in slices, but nothing that has come back in the meantime."""
        instance, ownership = self._shared.instance, _ownership(self._shared)
        select = selects(units, ownership)
        with self._shared.lock:
            keys = list(self._luggage.found(units, select))
        for at in range(0, len(keys), FORGET_KEYS):
            part = keys[at : at + FORGET_KEYS]
            hashes = np.array([instance.key_codec.route_hash(key) for key in part], np.int64)
            with self._shared.lock:
                gone = instance.stands(hashes) == AWAY
                if instance.memory.staged:
                    gone &= ~selects(instance.memory.staged, ownership)(hashes)
                instance.keys.drop([part[i] for i in np.flatnonzero(gone).tolist()], settled=True)
        with self._shared.changed:
            coming = selects(instance.memory.staged, ownership)  # back, and with a ledger of its own
            instance.ledger.drop(lambda hashes: select(hashes) & (instance.stands(hashes) == AWAY) & ~coming(hashes))
            ownership.confirm(f"{self.order.id}/{step}")
            instance.write([instance.own_part()])
        if self.order.gap_ms:
            self._peer.idle.wait(self.order.gap_ms / 1000)  # before the next step has its turn
        self.figures.keys += len(keys)
        self.figures.moved |= {unit: ownership.share(unit).epoch for unit in units}
        self._note("served")

    # -- following ---------------------------------------------------------------------------------------------------

    def _unfollow(self, step: int) -> None:
        following = self._following.pop(step, None)
        if following is not None:
            self._shared.instance.followers.remove(following)

    def _stop_following(self) -> None:
        with self._shared.lock:
            for step in list(self._following):
                self._unfollow(step)
            if self._luggage.noting in self._shared.instance.followers:
                self._shared.instance.followers.remove(self._luggage.noting)
            if self.post in self._shared.event_listeners:
                self._shared.event_listeners.remove(self.post)
            if not self._resumed:
                _ownership(self._shared).end_move(self.units)


def union(steps: tuple[Units, ...]) -> Units:
    groups: frozenset[int] = frozenset().union(*(units.groups for units in steps))
    keys: frozenset[int] = frozenset().union(*(units.keys for units in steps))
    return Units(groups, keys)


def _ownership(shared: SharedInstance) -> Any:
    assert shared.instance.ownership is not None, "only instances with an ownership take part in migrations"
    return shared.instance.ownership

"""The origin's side of a migration on a host: a thread that runs the protocol's machine and carries out its effects.

Everything that goes to the target goes through one line, and what is put in line is put there under the instance's lock: so the
target hears of copies and of the rows applied after them in the order in which they happened. Decides nothing that the machine
decides; it knows how state is captured, sent and released.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.errors import GodwitError, from_json
from godwit.migration.events import (
    AbortAsked,
    Begun,
    CaughtUp,
    Copied,
    Copy,
    Cut,
    Declined,
    Effect,
    End,
    Event,
    Forget,
    Lend,
    Missing,
    Offer,
    Offered,
    PeerBack,
    PeerLost,
    Prepared,
    Release,
    Released,
    Resume,
    Served,
    Ship,
    TellAborted,
    TellReleased,
    Wanted,
)
from godwit.migration.origin import PROTOCOLS, Origin, Phase, Protocol
from godwit.model.progress import BatchRef
from godwit.model.units import Unit, Units
from godwit.runtime import parcels
from godwit.runtime.leases import check_owner, host_directory, read_lease
from godwit.runtime.rows import Times
from godwit.runtime.seat import Seat
from godwit.runtime.shares import AWAY, selects
from godwit.runtime.work import Chunk, Work
from godwit.state.changelog import Changelog
from godwit.state.changes import Changes
from godwit.state.keys import Key
from godwit.state.ledger import Entry
from godwit.transport import wire
from godwit.transport.flight import GONE, Client

SLICE_BYTES = 256 << 10  # sent at a time: a few hundred microseconds of Python's lock
SLICE_ROWS = 2_000
SLICE_KEYS = 256
BEHIND_ROWS_MAX = 5_000  # forwarded and not yet replayed, below which the target counts as caught up
FORGET_KEYS = 2_000
RETRY_S = 0.02


@dataclass(frozen=True, slots=True)
class Port:
    """What movers and receivers need from their host."""

    host: str
    checkpoint: str
    token: str
    incarnation: str
    log: Changelog
    clock_ms: Callable[[], int]
    stopping: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for."""

    id: str
    operator: str
    target: str
    protocol: str
    steps: tuple[Units, ...]
    side_by_side: int | None = None
    rate_bytes_per_s: float | None = None
    gap_ms: float = 0.0
    source: str = "live"
    check: bool = False


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
    moved: list[list[Any]] = field(default_factory=list)
    phases: list[tuple[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Out:
    """Something in line for the target: parts of it are made when it is sent."""

    kind: str
    bodies: Iterator[Any] | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    forwarded: int = 0  # rows, if these are rows that the origin has applied


class Mover:
    def __init__(self, port: Port, seat: Seat, order: Order, released: dict[int, Units] | None = None) -> None:
        self.order = order
        self.failure: GodwitError | None = None
        self._port = port
        self._seat = seat
        self._units = _union(order.steps)
        self._select = selects(self._units, _ownership(seat))
        protocol = PROTOCOLS[order.protocol]
        self._resumed = released is not None
        self._keys: dict[Unit, dict[Key, int]] = {}  # of every unit, with their routing hashes
        self._machine: Origin | None = Origin.resumed(protocol, released) if released is not None else None
        self._protocol: Protocol = protocol
        self._line: queue.SimpleQueue[Out | Event] = queue.SimpleQueue()
        self._work: deque[Iterator[None]] = deque()
        self._following: dict[int, Following] = {}
        self._copied: set[int] = set()
        self._client: Client | None = None
        self._writer: Any = None
        self._owed_s = 0.0
        self._connection = 0
        self._farewell: list[tuple[str, Entry]] = []
        self.rows_applied = 0  # of moving keys, here, since it began
        self._idle = threading.Event()
        self.news = threading.Condition()
        self.news_count = 0
        self.figures = Figures(time.monotonic(), port.clock_ms())
        self._thread = threading.Thread(target=self._run, name=f"godwit-mover-{order.id}", daemon=True)

    # -- what others see ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._idle.set()
        self._thread.join(timeout_s)

    def post(self, event: Event) -> None:
        self._line.put(event)

    @property
    def ended(self) -> bool:
        return self.figures.ended_ms is not None

    def outcome(self, number: int) -> str:
        """For a target that asks whether a step that was not released is still open."""
        if self.ended or self._machine is None:
            return "kept" if self.ended else "open"
        step = next((step for step in self._machine.steps if step.number == number), None)
        return "kept" if step is None or step.phase.name == "DROPPED" else "open"

    def report(self) -> dict[str, Any]:
        figures, steps = self.figures, [] if self._machine is None else self._machine.steps
        done = sum(step.phase.name == "DONE" for step in steps)
        waits = self._seat.waits(figures.began_ms)
        return {
            "id": self.order.id,
            "state": "ended" if self.ended else "running",
            "protocol": self.order.protocol,
            "target": self.order.target,
            "steps": len(steps) or len(self.order.steps),
            "done": done,
            "dropped": sum(step.phase.name == "DROPPED" for step in steps),
            "reason": str(self.failure) if self.failure else "" if self._machine is None else self._machine.reason,
            "keys": figures.keys,
            "keys_total": figures.keys_total,
            "bytes": figures.bytes,
            "rows_forwarded": figures.rows_forwarded,
            "bytes_forwarded": figures.bytes_forwarded,
            "rows_applied": self.rows_applied,
            "waits": waits,
            "phases": [[name, round(at_ms, 2)] for name, at_ms in figures.phases],
            "moved": list(figures.moved),
            "began_ms": figures.began_ms,
            "ended_ms": figures.ended_ms,
        }

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not self._resumed:
                self._prepare()
            first = not self._resumed
            while not self._over():
                if not self._connect():
                    continue
                self._handle(Begun() if first else PeerBack())
                first = False
                try:
                    self._pump()
                except (_Lost, *GONE, pa.ArrowInvalid):
                    self._disconnect()
                    self._handle(PeerLost())
                    for event in self._purge():
                        self._line.put(event)
        except GodwitError as error:
            self.failure = error
            with suppress(GodwitError):
                self._handle(AbortAsked(str(error)))
        finally:
            self._disconnect()
            self._stop_following()
            self._note("ended")

    def _over(self) -> bool:
        return self._port.stopping() or (self._machine is not None and self._machine.ended)

    def _pump(self) -> None:
        while not self._over():
            try:
                item = self._line.get(block=not self._work, timeout=0.5 if not self._work else None)
            except queue.Empty:
                if self._work:
                    self._advance_work()
                continue
            if isinstance(item, Event):
                self._handle(item)
            else:
                self._send(item)

    def _advance_work(self) -> None:
        if next(self._work[0], self) is self:  # nothing more to do
            self._work.popleft()

    def _handle(self, event: Event) -> None:
        if isinstance(event, _Broken):
            if event.connection == self._connection:
                raise _Lost(str(event.error))
            return
        if isinstance(event, _Failed):
            self.failure = event.error
            event = AbortAsked(str(event.error))
        assert self._machine is not None
        for effect in self._machine.on(event):
            self._do(effect)
        self._tell_news()

    def _tell_news(self) -> None:
        with self.news:
            self.news_count += 1
            self.news.notify_all()

    def _note(self, phase: str) -> None:
        """When something was last done: what a migration's time goes into."""
        self.figures.phases.append((phase, (time.monotonic() - self.figures.began_s) * 1000))
        if phase == "ended":
            self.figures.ended_ms = self._port.clock_ms()
            self._tell_news()

    # -- the connection ----------------------------------------------------------------------------------------------

    def _connect(self) -> bool:
        lease = read_lease(host_directory(self._port.checkpoint, self.order.target))
        if lease is None or lease.incarnation != self._port.incarnation:
            check_owner(self._port.checkpoint, self._port.incarnation)
            self._idle.wait(RETRY_S)
            self._drain_aborts()
            return False
        self._client = Client(lease.address, self._port.token)
        self._connection += 1
        try:
            self._writer, reader = self._client.exchange(
                migration=self.order.id, operator=self.order.operator, origin=self._port.host, check=self.order.check
            )
            self._writer.begin(parcels.SCHEMA)
            parcels.write(self._writer, "hello")
            wire.unpack(reader.read_chunk().app_metadata, "hello")
        except (*GONE, pa.ArrowInvalid):
            self._disconnect()
            self._idle.wait(RETRY_S)
            self._drain_aborts()
            return False
        threading.Thread(
            target=self._listen, args=(reader, self._connection), name="godwit-mover-in", daemon=True
        ).start()
        return True

    def _drain_aborts(self) -> None:
        """While there is no target to talk to, what is asked of us is still heard."""
        for event in self._purge():
            if isinstance(event, AbortAsked):
                self._handle(event)
            else:
                self._line.put(event)

    def _purge(self) -> list[Event]:
        """What stood in line for a connection that is gone is not sent on the next; facts stay."""
        kept: list[Event] = []
        while not self._line.empty():
            item = self._line.get()
            if isinstance(item, Event):
                kept.append(item)
        return kept

    def _disconnect(self) -> None:
        if self._client is not None:
            with suppress(*GONE, pa.ArrowInvalid):
                self._writer.done_writing()
            self._client.close()
            self._client, self._writer = None, None
        self._work.clear()

    def _listen(self, reader: Any, connection: int) -> None:
        """The target's answers as events; the end of the stream is one too."""
        heard: dict[str, Callable[[dict[str, Any]], Event]] = {
            "offered": lambda _: Offered(),
            "wanted": lambda note: Wanted(parcels.units_in(note)),
            "prepared": lambda note: Prepared(note["step"]),
            "declined": lambda note: Declined(note["step"]),
            "missing": lambda note: Missing(note["step"]),
            "served": lambda note: Served(note["step"]),
            "caught_up": lambda note: _Reached(note["step"], note["rows"]),
            "failed": lambda note: _Failed(from_json(note["error"])),
        }
        try:
            while True:
                note = wire.unpack(reader.read_chunk().app_metadata)
                event = heard[note["kind"]](note)
                if isinstance(event, _Reached):
                    self._reached(event)
                else:
                    self._line.put(event)
        except (GodwitError, *GONE, pa.ArrowInvalid) as error:
            self._line.put(_Broken(error, connection))

    def _reached(self, event: _Reached) -> None:
        """The target has come to a marker. If much was forwarded since, it gets another."""
        following = self._following.get(event.step)
        if following is None:
            return
        if following.rows - event.rows <= BEHIND_ROWS_MAX:
            self._line.put(CaughtUp(event.step))
        else:
            self._put(Out("copied", fields={"step": event.step, "rows": following.rows}))

    def _put(self, out: Out) -> None:
        self._line.put(out)

    def _send(self, out: Out) -> None:
        """What cannot be sent now is not needed later: a new connection begins with what the machine says."""
        if self._writer is None:
            return
        sent = 0
        if out.bodies is None:
            parcels.write(self._writer, out.kind, **out.fields)
        else:
            for body in out.bodies:
                sent += parcels.write(self._writer, out.kind, body, **out.fields)
        if out.forwarded:
            self.figures.rows_forwarded += out.forwarded
            self.figures.bytes_forwarded += sent
        else:
            self.figures.bytes += sent
        self._pace(sent)

    def _pace(self, sent: int) -> None:
        if self.order.rate_bytes_per_s:
            self._owed_s += sent / self.order.rate_bytes_per_s
            if self._owed_s > 0.005:
                self._idle.wait(self._owed_s)
                self._owed_s = 0.0

    # -- getting ready -----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Find the keys of all units, without stopping anybody: new ones are noted from now on."""
        state, codec = self._seat.instance.state, self._seat.instance.key_codec
        noting = _Noting(self)
        with self._seat.lock:
            self._seat.instance.followers.append(noting)
            self._seat.told.append(self.post)
            lists = state.key_lists()
        for keys in lists:
            for at in range(0, len(keys), FORGET_KEYS):
                part = keys[at : at + FORGET_KEYS]
                hashes = np.array([codec.route_hash(key) for key in part], np.int64)
                chosen = np.flatnonzero(self._select(hashes)).tolist()
                with self._seat.lock:
                    self.note_keys([part[i] for i in chosen], hashes[chosen].tolist())
        self.figures.keys_total = sum(map(len, self._keys.values()))
        with self._seat.lock:
            share = state.bytes_estimate / max(state.key_count, 1)
        sizes = [int(share * sum(len(self._keys.get(unit, ())) for unit in units)) for units in self.order.steps]
        self._machine = Origin(self._protocol, self.order.steps, sizes, self.order.side_by_side)
        self._note("indexed")

    def note_keys(self, keys: list[Key], hashes: list[int]) -> None:
        """Keys of moving units; called with the lock held."""
        count = len(_ownership(self._seat).groups)
        for key, route_hash in zip(keys, hashes, strict=True):
            unit = Unit("key", route_hash) if route_hash in self._units.keys else Unit("group", route_hash % count)
            known = self._keys.setdefault(unit, {})
            if key not in known:
                known[key] = route_hash
                for following in self._following.values():
                    following.found(key, route_hash)

    def _keys_of(self, units: Units) -> dict[Key, int]:
        return {key: h for unit in units for key, h in self._keys.get(unit, {}).items()}

    # -- effects -----------------------------------------------------------------------------------------------------

    def _do(self, effect: Effect) -> None:
        match effect:
            case Lend(units):
                self._change(lambda ownership: ownership.lend(units, self.order.target))
            case Copy(step, units, forward):
                self._work.append(self._copy(step, units, forward))
            case Cut(_, units):
                self._change(lambda ownership: ownership.cut(units, self.order.target))
            case Ship(step, units):
                self._ship(step, units)
            case Release(step, units):
                self._release(step, units)
            case Resume(step, units):
                self._resume(step, units)
            case Forget(step, units):
                self._forget(step, units)
            case _:
                self._tell(effect)

    def _tell(self, effect: Effect) -> None:
        match effect:
            case Offer(units):
                self._put(Out("offer", fields={"units": units.to_dict()}))
            case TellReleased(step):
                epochs = parcels.epochs_list(_ownership(self._seat).outgoing[f"{self.order.id}/{step}"].epochs)
                self._put(Out("released", fields={"step": step, "epochs": epochs}))
            case TellAborted(step, units):
                self._put(Out("aborted", fields={"step": step, "units": units.to_dict()}))
            case End():
                return
            case _:
                raise AssertionError(effect)

    def _change(self, change: Callable[[Any], None]) -> None:
        with self._seat.changed:
            change(_ownership(self._seat))
            self._seat.changed.notify_all()

    def _copy(self, step: int, units: Units, forward: str) -> Iterator[None]:
        """Slices of keys in the order of their hashes; what is behind the frontier is followed from there on."""
        following = Following(self, step, selects(units, _ownership(self._seat)), forward)
        with self._seat.lock:
            self._put(Out("step", fields={"step": step, "units": units.to_dict()}))
            for key, route_hash in self._keys_of(units).items():
                following.pending.append((route_hash, len(following.pending), key))
            heapify(following.pending)
            self._following[step] = following
            self._seat.instance.followers.append(following)
        while True:
            with self._seat.lock:
                keys = following.next_slice()
                if not keys:
                    self._put(Out("copied", fields={"step": step, "rows": following.rows}))
                    self._copied.add(step)
                    self._line.put(Copied(step))
                    break
                self._put(Out("state", self._bodies(keys), {"step": step}))
            yield
        self._note("copied")

    def _bodies(self, keys: list[Key]) -> Iterator[Any]:
        """What the keys hold now; made into bytes when it is sent."""
        return (batch.serialize() for batch in self._seat.instance.state.held(keys, SLICE_ROWS, SLICE_BYTES))

    def _ship(self, step: int, units: Units) -> None:
        """All that the target does not have of the step. Nothing of it changes any more, so it is taken at once."""
        instance, ownership = self._seat.instance, _ownership(self._seat)
        with self._seat.lock:
            select = selects(units, ownership)
            keys = list(self._keys_of(units) if self._keys else self._scan(select))
            last = not (ownership.mine() - units)
            out = [Out("step", fields={"step": step, "units": units.to_dict()})]
            if self.order.source == "backup" and step not in self._copied:
                directory = str(host_directory(self._port.checkpoint, self._port.host))
                out.append(Out("backup", fields={"step": step, "directory": directory, "lsn": self._seat.lsn}))
            elif step not in self._copied:
                out += [
                    Out("state", self._bodies(keys[at : at + SLICE_KEYS]), {"step": step})
                    for at in range(0, len(keys), SLICE_KEYS)
                ]
            batches = instance.state.committed(keys, SLICE_ROWS, SLICE_BYTES)
            out.append(Out("committed", (batch.serialize() for batch in batches), {"step": step}))
            timers = self._farewell or list(instance.ledger.timers()) if last else []
            for lane, entry in [*instance.ledger.of(select), *timers]:
                info, body = entry.part(instance.name, instance.progress.batch, lane)
                out.append(Out("ledger", iter([body]), {"step": step, "entry": info}))
            mark, _ = instance.mark_part()
            epochs = {unit: ownership.share(unit).epoch for unit in units}
            released = ownership.outgoing.get(f"{self.order.id}/{step}")
            if released is not None:
                epochs = {unit: epoch - 1 for unit, epoch in released.epochs.items()}
            rest = {
                "step": step,
                "units": units.to_dict(),
                "epochs": parcels.epochs_list(epochs),
                "apart": [[key, *owner] for key, owner in ownership.apart(units).items()],
                "mark": mark,
                "released": released is not None,
            }
            out.append(Out("rest", fields=rest))
        self._port.log.flush(self._seat.lsn)
        if step in self._copied:
            for item in out:
                self._put(item)
        else:
            self._work.append(self._shipping(out))
        self.figures.keys += len(keys)

    def _shipping(self, out: list[Out]) -> Iterator[None]:
        for item in out:
            self._send(item)
            yield
        if self.order.gap_ms:
            self._idle.wait(self.order.gap_ms / 1000)

    def _scan(self, select: Callable[[Any], Any]) -> list[Key]:
        """Keys of a step that was released before a restart."""
        codec = self._seat.instance.key_codec
        keys = list(self._seat.instance.state.keys())
        hashes = np.array([codec.route_hash(key) for key in keys], np.int64)
        return [keys[i] for i in np.flatnonzero(select(hashes)).tolist()]

    def _release(self, step: int, units: Units) -> None:
        instance, ownership = self._seat.instance, _ownership(self._seat)
        with self._seat.changed:
            self._unfollow(step)
            ownership.release(f"{self.order.id}/{step}", units, self.order.target)
            if not ownership.mine():  # what timers have put out is answered for by the last target from now on
                self._farewell = self._farewell or list(instance.ledger.timers())
                instance.ledger.drop(lambda hashes: np.zeros(len(hashes), np.bool_), timers=True)
            self._seat.lsn = lsn = self._port.log.append([instance.own_part()])
            self._seat.changed.notify_all()
        self._port.log.sync(lsn)
        self._line.put(Released(step))
        self._note("released")

    def _resume(self, step: int, units: Units) -> None:
        """If the target only has to wait for the next batch, it follows on."""
        assert self._machine is not None
        with self._seat.changed:
            if self._machine.phase(step) is not Phase.WAITING:
                self._unfollow(step)
            _ownership(self._seat).resume(units)
            self._seat.changed.notify_all()

    def _forget(self, step: int, units: Units) -> None:
        """The target has it: drop the state, in slices, but nothing that has come back in the meantime."""
        instance, ownership = self._seat.instance, _ownership(self._seat)
        select = selects(units, ownership)
        with self._seat.lock:
            keys = list(self._keys_of(units) if self._keys else self._scan(select))
        for at in range(0, len(keys), FORGET_KEYS):
            with self._seat.lock:
                part = [key for key in keys[at : at + FORGET_KEYS] if self._gone(instance.key_codec.route_hash(key))]
                changes = instance.state.drop(part)
                if len(changes):
                    info = {"kind": "state", "op": instance.name, "batch": instance.progress.batch}
                    body = changes.to_batch(instance.key_codec).serialize()
                    self._seat.lsn = self._port.log.append([(info, body)])
        with self._seat.changed:
            instance.ledger.drop(lambda hashes: select(hashes) & (instance.stands(hashes) == AWAY))
            ownership.confirm(f"{self.order.id}/{step}")
            self._seat.lsn = self._port.log.append([instance.own_part()])
        self.figures.moved += [[unit.kind, unit.id, ownership.share(unit).epoch] for unit in units]
        self._note("served")

    def _gone(self, route_hash: int) -> bool:
        ownership = _ownership(self._seat)
        share = ownership.of(route_hash)
        staged = self._seat.instance.staged
        here = route_hash in staged.keys or route_hash % len(ownership.groups) in staged.groups
        return share.stand.name == "AWAY" and not here

    # -- following ---------------------------------------------------------------------------------------------------

    def _unfollow(self, step: int) -> None:
        following = self._following.pop(step, None)
        if following is not None:
            self._seat.instance.followers.remove(following)

    def _stop_following(self) -> None:
        with self._seat.lock:
            for step in list(self._following):
                self._unfollow(step)
            mine = [f for f in self._seat.instance.followers if isinstance(f, _Noting) and f.mover is self]
            for noting in mine:
                self._seat.instance.followers.remove(noting)
            if self.post in self._seat.told:
                self._seat.told.remove(self.post)

    def forward(self, out: Out) -> None:
        self._line.put(out)


class Following:
    """Forwards what happens to keys that have been copied; called with the lock held, right after it has happened."""

    def __init__(self, mover: Mover, step: int, select: Callable[[Any], Any], forward: str) -> None:
        self.pending: list[tuple[int, int, Key]] = []
        self.rows = 0
        self._mover = mover
        self._step = step
        self._select = select
        self._forward = forward
        self._frontier: int | None = -(1 << 63)  # hashes below it are copied; None: all are

    def found(self, key: Key, route_hash: int) -> None:
        """A new key. If its place has been passed, all that ever happened to it is forwarded."""
        if self._select(np.array([route_hash]))[0] and self._frontier is not None and route_hash >= self._frontier:
            heappush(self.pending, (route_hash, len(self.pending) + (1 << 40), key))

    def next_slice(self) -> list[Key]:
        """The keys that are copied next, whole hashes at a time; the frontier moves behind them."""
        keys: list[Key] = []
        while self.pending and len(keys) < SLICE_KEYS:
            route_hash = self.pending[0][0]
            while self.pending and self.pending[0][0] == route_hash:
                keys.append(heappop(self.pending)[2])
            self._frontier = route_hash + 1
        if not self.pending and not keys:
            self._frontier = None
        return keys

    def _copied(self, hashes: Any) -> Any:
        chosen = self._select(hashes)
        return chosen if self._frontier is None else chosen & (hashes < self._frontier)

    def applied(self, request: BatchRef, lane: str, chunk: Chunk, times: Times, keys: Any, work: Work) -> None:
        copied = self._copied(chunk.hashes)
        if not copied.any():
            return
        instance = self._mover._seat.instance
        if self._forward == "changes":
            self._changes(request.batch, work.changes)
            return
        part = chunk.filter(copied)
        self.rows += len(part)
        fields: dict[str, Any] = {
            "step": self._step,
            "lane": lane,
            "progress": instance.progress.to_dict(),
            "times": parcels.times_list(times),
        }
        if self._mover.order.check:
            fields["expect"] = self._expected(part, work)
        bodies = (parcels.chunk_body(c) for c in (part,))
        self._mover.forward(Out("replay", bodies, fields, len(part)))

    def _expected(self, part: Chunk, work: Work) -> str:
        instance = self._mover._seat.instance
        changes = parcels.only(work.changes.to_batch(instance.key_codec), instance.key_codec, self._copied)
        rows = set(part.rows.tolist())
        outputs = [
            batch.filter(pa.array([row in rows for row in batch.column(0).to_pylist()])) for batch in work.outputs
        ]
        return parcels.fingerprint(changes, outputs)

    def changed(self, batch: int, changes: Changes) -> None:
        self._changes(batch, changes)

    def _changes(self, batch: int, changes: Changes) -> None:
        if not len(changes):
            return
        instance = self._mover._seat.instance
        part = parcels.only(changes.to_batch(instance.key_codec), instance.key_codec, self._copied)
        if len(part):
            self.rows += len(part)
            fields = {"step": self._step, "progress": instance.progress.to_dict()}
            self._mover.forward(Out("changes", (b.serialize() for b in (part,)), fields, len(part)))


class _Noting:
    """Notes new keys of the units that move."""

    def __init__(self, mover: Mover) -> None:
        self.mover = mover

    def applied(self, request: BatchRef, lane: str, chunk: Chunk, times: Times, keys: Any, work: Work) -> None:
        chosen = self.mover._select(chunk.hashes)
        if chosen.any():
            self.mover.rows_applied += int(chosen.sum())
            codec = self.mover._seat.instance.key_codec
            moving = set(chunk.hashes[chosen].tolist())
            found = [(key, h) for key in keys if (h := codec.route_hash(key)) in moving]
            self.mover.note_keys([key for key, _ in found], [h for _, h in found])

    def changed(self, batch: int, changes: Changes) -> None:
        return


class _Lost(Exception):
    """The connection to the target broke."""


@dataclass(frozen=True, slots=True)
class _Broken(Event):
    error: BaseException
    connection: int


@dataclass(frozen=True, slots=True)
class _Failed(Event):
    """The target cannot go on, for a reason that somebody must know."""

    error: GodwitError


@dataclass(frozen=True, slots=True)
class _Reached(Event):
    step: int
    rows: int


def _union(steps: tuple[Units, ...]) -> Units:
    groups: frozenset[int] = frozenset().union(*(units.groups for units in steps))
    keys: frozenset[int] = frozenset().union(*(units.keys for units in steps))
    return Units(groups, keys)


def _ownership(seat: Seat) -> Any:
    assert seat.instance.ownership is not None, "only instances with an ownership take part in migrations"
    return seat.instance.ownership

"""Carries out the effects of the origin's machine: copies, ships, releases, resumes and forgets steps.

Knows how each effect changes the instance, the changelog and the stream to the target. Decides nothing that the machine
decides, nor which messages carry a key (`shipment`). Follows the lock rule of `outgoing.OutgoingHandover`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from godwit.migration.events import (
    Copied,
    Copy,
    Cut,
    Effect,
    End,
    Forget,
    Lend,
    Offer,
    Release,
    Released,
    Resume,
    Ship,
    TakeBack,
    TellAborted,
    TellReleased,
)
from godwit.migration.origin import Phase, Protocol
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.chunk.ownership_columns import AWAY, selects
from godwit.runtime.durable.journal import NewPart
from godwit.runtime.handover.connection import Queued, TargetConnection
from godwit.runtime.handover.forwarding import Forwarder, Select
from godwit.runtime.handover.outgoing import OutgoingHandover
from godwit.runtime.liveness.leases import host_directory
from godwit.state.keys import Key


class OriginEffects:
    """`phase`: the machine's phase of a step. Only the mover's thread calls methods of this class."""

    def __init__(
        self,
        handover: OutgoingHandover,
        connection: TargetConnection,
        protocol: Protocol,
        phase: Callable[[int], Phase],
    ) -> None:
        self.handover = handover
        self.connection = connection
        self._protocol = protocol
        self._phase = phase
        self._shared = handover.shared
        self._shipment = handover.shipment
        self._log = handover.services.log

    def do(self, effect: Effect) -> None:
        handover = self.handover
        match effect:
            case Lend(units):
                self._change(lambda ownership: ownership.lend(units, handover.request.target))
            case Copy(step, units, forward):
                handover.slices.append((step, self._copy(step, units, forward)))
            case Cut(_, units):
                self._change(lambda ownership: ownership.cut(units, handover.request.target))
            case Ship(step, units):
                self._ship(step, units)
            case Release(step, units):
                self.release(step, units)
            case TakeBack(step):
                self._take_back(step)
            case Resume(step, units):
                self._resume(step, units)
            case Forget(step, units):
                handover.cancel_slices(step)
                handover.close_step(step)
                handover.note_served(units)
                handover.to_forget.append(self.forget(step, units))  # later, because no row waits for that
            case _:
                self._tell(effect)

    def _tell(self, effect: Effect) -> None:
        handover = self.handover
        match effect:
            case Offer(units):
                handover.queue.put(Queued(messages.OfferUnits(units)))
            case TellReleased(step):
                epochs = handover.shared.ownership.outgoing[handover.name(step)].epochs
                self._put_behind_slices(step, Queued(messages.StepReleased(step, epochs)))
            case TellAborted(step, units):
                self._put_behind_slices(step, Queued(messages.StepAborted(step, units)))
            case End():
                return
            case _:
                raise AssertionError(effect)

    def _put_behind_slices(self, step: int, queued: Queued) -> None:
        """Queue a message of a step; if slices of the step are still to be sent, behind them."""
        last = self.handover.last_slices(step)
        if last is None:
            self.handover.queue.put(queued)
        else:
            self.handover.slices.insert(last + 1, (step, self._send_each([queued])))

    def _change(self, change: Callable[[Any], None]) -> None:
        with self._shared.changed:
            change(self.handover.shared.ownership)
            self._shared.changed.notify_all()

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, queued: Queued) -> None:
        """Send. Copies of a standby may outlive this host, so they must not be ahead of its durable changelog."""
        if self._protocol.until_asked:
            with self._shared.lock:
                lsn = self._shared.lsn
            self._log.sync(lsn)
            queued = replace(queued, message=replace(queued.message, written=(self._log.generation, lsn)))
        if queued.bodies is None or queued.forwarded:
            self.handover.count_sent(queued, self.connection.send(queued))
        else:
            with self.handover.turns.working():
                self.handover.count_sent(queued, self.connection.send(queued))

    def _send_each(self, items: Iterable[Queued]) -> Iterator[None]:
        """One item per turn. The last item leaves without a pause behind it, so a later message of the step follows at once."""
        before: Queued | None = None
        for queued in items:
            if before is not None:
                self.send(before)
                yield
            before = queued
        if before is not None:
            self.send(before)

    # -- copying -----------------------------------------------------------------------------------------------------

    def _copy(self, step: int, units: Units, forward: str) -> Iterator[None]:
        """Copy keys in slices, in the order of their hashes. Later rows or changes of copied keys are forwarded."""
        handover = self.handover
        select = selects(units, handover.shared.ownership)
        forwarder = Forwarder(self._shared, handover.queue, step, select, forward, handover.request.check)
        with self._shared.lock:
            handover.queue.put(self._shipment.announcement(handover.request.id, step, units, ahead=True))
            handover.start_forwarding(step, forwarder)  # of keys that come from now on, it knows without being told
        known = self._shipment.keys_in_order(units)
        keys = set(known.keys)
        with self._shared.lock:
            forwarder.begin(known, keys)
        yield
        while self._copy_slice(step, forwarder):
            yield
        if forward == "rows":
            yield from self._send_batch_so_far(step, select, forwarder)
        with self._shared.lock:
            handover.queue.put(self.marker(step, forwarder))
            handover.step(step).copied = forwarder.keys
            handover.queue.put(Copied(step))
        handover.note_phase("copied")

    def _copy_slice(self, step: int, forwarder: Forwarder) -> bool:
        """Put the state of the next keys in line; False if there are no more."""
        turns = self.handover.turns
        with self._shared.lock:
            keys = forwarder.next_slice(self._shipment.slice_keys(turns.items))
            if keys:
                self.handover.queue.put(self._shipment.state(step, keys))
        turns.count(len(keys))
        self._end_slice(step)
        return bool(keys)

    def _end_slice(self, step: int) -> None:
        self.handover.queue.put(Queued(messages.SliceEnd(step)))
        self.handover.turns.sent()

    def _send_batch_so_far(self, step: int, select: Select, forwarder: Forwarder) -> Iterator[None]:
        """Send the ledger of the batch so far. The target replays the later rows, so the cut need not send any ledger.

        All keys are copied, so later rows are forwarded: what is sent here does not change any more. If the batch begins anew
        meanwhile, the reverted keys are forwarded; if the next batch begins, nobody needs what belongs to this one.
        """
        shared, shipment = self._shared, self._shipment
        with shared.lock:
            progress, entries = shared.instance.progress, shipment.ledger(step, select)
            keys = list(shipment.with_removed(forwarder.keys, select))
        at = 0
        while at < len(keys):
            part = keys[at : at + self.handover.turns.items]
            with shared.lock:
                if not shipment.in_same_batch(progress):
                    break
                for images in shipment.of_batch(step, part, ()):
                    self.handover.queue.put(images)
            self.handover.turns.count(len(part))
            self._end_slice(step)
            at += len(part)
            yield
        for queued in entries:
            if queued is not None:
                self.handover.queue.put(queued)
                self._end_slice(step)
            yield
        self.handover.step(step).batch_sent = True

    def marker(self, step: int, forwarder: Forwarder) -> Queued:
        """A message whose answer shows that the target has everything that was forwarded before it."""
        return Queued(messages.CopyMarker(step, forwarder.rows, self._shared.instance.progress.batch))

    # -- shipping ----------------------------------------------------------------------------------------------------

    def _ship(self, step: int, units: Units) -> None:
        """Send all that the target lacks of the step. Nothing of the step changes after the cut, so all is taken at once."""
        with self._shared.lock:
            items = self._shipped(step, units)
            self.handover.step(step).shipped = True
            if self.handover.name(step) in self.handover.shared.ownership.outgoing:
                self.handover.stop_forwarding(step)
        self._log.flush(self._shared.lsn)
        if self.handover.step(step).copied is not None:
            for queued in items:
                self.handover.queue.put(queued)
        else:
            self.handover.slices.append((step, self._send_each(items)))

    def _shipped(self, step: int, units: Units) -> Iterator[Queued]:
        """All but the ledger is taken now, with the instance's lock; the ledger when it is read, without the lock."""
        handover, shipment, outgoing = self.handover, self._shipment, self.handover.step(step)
        ledger, ownership = self._shared.instance.ledger, handover.shared.ownership
        select = selects(units, ownership)
        copied = outgoing.copied  # complete: since the cut, rows wait
        keys: Collection[Key] = copied if copied is not None else shipment.keys_of(units, select)
        items = [shipment.announcement(handover.request.id, step, units)]
        if copied is None:
            from_backup = handover.request.source == "backup"
            items += [self._backup(step)] if from_backup else shipment.all_state(step, keys)
        # The origin may leave when it has given away its last units, so the target gets the outputs of its timers, too. Until
        # the origin leaves, it answers for these outputs as well: a task that opened the target before the outputs came gets
        # them from the origin. Firings have names, so a router that gets a firing twice uses it once.
        timers = [] if ownership.mine() - units else list(ledger.timers())
        sent = copied is not None and outgoing.batch_sent
        items += shipment.of_batch(step, () if sent else shipment.with_removed(keys, select), timers)
        ledger_messages = iter(()) if sent else shipment.ledger(step, select)
        entries = (queued for queued in ledger_messages if queued is not None)
        return chain(items, entries, [shipment.end(handover.request.id, step, units)])

    def _backup(self, step: int) -> Queued:
        """Tells the target where to read the state: in the origin's changelog."""
        services = self.handover.services
        directory = str(host_directory(services.checkpoint, services.host))
        return Queued(messages.StepBackup(step, directory, self._shared.lsn))

    # -- deciding ----------------------------------------------------------------------------------------------------

    def release(self, step: int, units: Units) -> None:
        handover, instance = self.handover, self._shared.instance
        with self._shared.changed:
            if handover.step(step).shipped:  # else the target has to hear of a batch that begins anew until then
                handover.stop_forwarding(step)
            handover.shared.ownership.release(handover.name(step), units, handover.request.target)
            lsn = instance.write([*self._released_timers(step, units), instance.own_part()])
            self._shared.changed.notify_all()
        self._log.sync(lsn)
        handover.post(Released(step))
        handover.note_phase("released")

    def _take_back(self, step: int) -> None:
        handover, instance = self.handover, self._shared.instance
        with self._shared.changed:
            name, ownership = handover.name(step), handover.shared.ownership
            units = ownership.outgoing[name].units
            ownership.take_back(name)
            lsn = instance.write([*self._timers_taken_back(name, units), instance.own_part()])
            self._shared.changed.notify_all()
        self._log.sync(lsn)
        handover.close_step(step)

    def _released_timers(self, step: int, units: Units) -> list[NewPart]:
        """If timers fire at the end of lanes, remember which of these units have fired here: the target fires the others."""
        instance, ownership = self._shared.instance, self._shared.ownership
        if not instance.spec.timers_end_lanes:
            return []
        name, target, batch = self.handover.name(step), self.handover.request.target, instance.batch
        apart, count = ownership.apart(units), len(ownership.groups)
        batch.fired_lanes = batch.fired_lanes.release(name, target, units, apart, count)
        return [instance.mark_part()]

    def _timers_taken_back(self, name: str, units: Units) -> list[NewPart]:
        """The other way round: the timers of these units that had not fired when they left fire here."""
        instance, ownership = self._shared.instance, self._shared.ownership
        if not instance.spec.timers_end_lanes:
            return []
        batch, count = instance.batch, len(ownership.groups)
        batch.fired_lanes = batch.fired_lanes.take_back(name, units, ownership.apart(units), count)
        return [instance.mark_part()]

    def _resume(self, step: int, units: Units) -> None:
        """Apply rows of the step here again. If the step only waits for the next batch, forwarding goes on."""
        with self._shared.changed:
            if self._phase(step) is not Phase.WAITING:
                self.handover.cancel_slices(step)
                self.handover.stop_forwarding(step)
                self.handover.close_step(step)
            self.handover.shared.ownership.resume(units)
            self._shared.changed.notify_all()

    # -- forgetting --------------------------------------------------------------------------------------------------

    def forget(self, step: int, units: Units) -> Iterator[None]:
        """The target owns the step: drop its state here, in slices, except keys that have come back meanwhile."""
        handover, ownership = self.handover, self.handover.shared.ownership
        select = selects(units, ownership)
        with self._shared.lock:
            keys = list(self._shipment.keys_of(units, select))
        yield
        at = 0
        while at < len(keys):
            part = keys[at : at + handover.turns.items]
            self._drop(part)
            handover.turns.count(len(part))
            at += len(part)
            yield
        yield from self._drop_entries(select)
        self._confirm(step)
        if handover.request.gap_ms:
            self.connection.idle.wait(handover.request.gap_ms / 1000)  # the pause that the user wants between steps
        handover.figures.keys += len(keys)
        handover.announce_news()

    def _drop(self, keys: list[Key]) -> None:
        instance = self._shared.instance
        hashes = instance.memory.hashes_of(keys)
        with self._shared.lock:
            gone = instance.stands(hashes) == AWAY
            if instance.memory.staged:
                gone &= ~selects(instance.memory.staged, self.handover.shared.ownership)(hashes)
            instance.keys.drop([keys[i] for i in np.flatnonzero(gone).tolist()], settled=True)

    def _drop_entries(self, select: Select) -> Iterator[None]:
        """The target answers for the ledger entries of these keys; units that come back bring their own."""
        instance, ownership = self._shared.instance, self.handover.shared.ownership

        def gone(hashes: Any) -> Any:
            coming = selects(instance.memory.staged, ownership)
            return select(hashes) & (instance.stands(hashes) == AWAY) & ~coming(hashes)

        dropping = instance.ledger.dropping(gone)
        while True:
            with self._shared.lock:
                if next(dropping, dropping) is dropping:
                    return
            yield

    def _confirm(self, step: int) -> None:
        instance, ownership = self._shared.instance, self.handover.shared.ownership
        with self._shared.changed:
            ownership.confirm(self.handover.name(step))
            instance.write([*self._confirmed_timers(step), instance.own_part()])

    def _confirmed_timers(self, step: int) -> list[NewPart]:
        instance, batch = self._shared.instance, self._shared.instance.batch
        if not instance.spec.timers_end_lanes:
            return []
        batch.fired_lanes = batch.fired_lanes.confirm(self.handover.name(step))
        return [instance.mark_part()]

"""Carries out the effects of the target's machine: expects, stages, prepares, serves and discards steps.

Knows how each effect changes the instance and its changelog. `Memory.staged` says which units may have copies here, so that a
restart can remove copies that never became the host's own. Knows nothing of connections. Follows the lock rule of
`incoming.IncomingHandover`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from godwit.errors import InvariantBroken
from godwit.model.ownership import Incoming, Stand
from godwit.model.progress import Progress
from godwit.model.units import Unit, Units
from godwit.runtime.chunk.ownership_columns import AWAY, selects
from godwit.runtime.durable.changelog_parts import ledger_part
from godwit.runtime.durable.journal import NewPart
from godwit.runtime.handover.incoming import IncomingHandover, IncomingStep, scan
from godwit.state.keys import Key

TAKEN_OVER = 0  # copies that an heir takes over are one step


class TargetEffects:
    def __init__(self, handover: IncomingHandover) -> None:
        self._handover = handover
        self._shared = handover.shared
        self._log = handover.services.log

    # -- before state arrives ----------------------------------------------------------------------------------------

    def accept(self, units: Units, apart: Collection[int] | None = None) -> Units:
        """Accept the units, except those that this host owns or has prepared; returns the accepted units. Called with the lock.

        Waits for earlier migrations that still have copies of these units here and do not know their outcome yet. Waits also
        for migrations that have copies of single keys of these groups, unless the keys are `apart` from the groups, and for
        migrations that have copies of the groups of these keys, unless the keys were apart from those groups: when such a
        migration drops its copies, it would drop these keys of this migration too.
        """
        handover = self._handover
        self._shared.changed.wait_for(lambda: self._free(units, apart) or handover.services.stopping())
        away = (Stand.AWAY, Stand.EXPECTED)
        units = Units.of(*(unit for unit in units if handover.shared.ownership.share(unit).stand in away))
        if units:
            handover.add_accepted(units)
        return units

    def _free(self, units: Units, apart: Collection[int] | None) -> bool:
        count = len(self._handover.shared.ownership.groups)
        for other, accepted in self._others():
            copied = self._shared.copied_groups.get(other, {})
            if accepted & units or any(key not in copied.get(key % count, (key,)) for key in units.keys):
                return False
            if apart is not None and any(key % count in units.groups and key not in apart for key in accepted.keys):
                return False
        return True

    def _others(self) -> list[tuple[str, Units]]:
        """The units that other migrations have brought or will bring."""
        accepted_units = self._shared.accepted_units.items()
        return [(other, accepted) for other, accepted in accepted_units if other != self._handover.migration]

    def _select(self, units: Units) -> Callable[[Any], Any]:
        """A test for columns of hashes. A key that another migration brings by itself does not belong to its group."""
        select = selects(units, self._handover.shared.ownership)
        theirs = np.array([key for _, accepted in self._others() for key in accepted.keys], np.int64)
        return lambda hashes: select(hashes) & ~np.isin(hashes, theirs)

    def expect(self, units: Units) -> None:
        with self._shared.changed:
            self._handover.shared.ownership.expect(units, self._handover.origin)
            self._shared.changed.notify_all()

    def stage(self, number: int, units: Units) -> None:
        """Record that copies of these units may be here from now on, and drop remains of their earlier state.

        If a step is announced again on the same connection, only its end follows, or all of its state once more: copies that
        have arrived stay.
        """
        handover, instance, step = self._handover, self._shared.instance, self._handover.step(number)
        again, step.units = step.units is not None, units
        with self._shared.changed:
            instance.batch.pending_outputs.pop(handover.name(number), None)
            if self.accept(units, step.apart) != units:
                raise InvariantBroken(f"{handover.name(number)} brings units that {handover.services.host} owns")
            self._check_not_outdated(number, units)
            back = handover.shared.ownership.rejoin(units, step.apart)
            handover.add_copies(units, step.apart)
            count, outgoing = len(handover.shared.ownership.groups), handover.shared.ownership.outgoing.values()
            if not again and any(out.units.overlaps(units, count) for out in outgoing):
                handover.drop_keys(scan(self._shared, self._select(units)))
            if back or units - instance.memory.staged:
                instance.memory.staged |= units
                handover.write([instance.own_part()])

    def _check_not_outdated(self, number: int, units: Units) -> None:
        """An announcement that comes late may take a key for one of its group that has moved by itself meanwhile."""
        step, ownership = self._handover.step(number), self._handover.shared.ownership
        for key, share in ownership.keys.items():
            epoch = step.epochs.get(Unit("group", key % len(ownership.groups)))
            if epoch is not None and share.epoch >= epoch and key not in step.apart and key not in units.keys:
                raise InvariantBroken(f"{self._handover.name(number)} was announced before key {key} left its group")

    # -- when the step is complete -----------------------------------------------------------------------------------

    def prepare(self, number: int, units: Units) -> None:
        """The whole step has arrived. It is durable when this returns, and not served yet."""
        handover, instance, end = self._handover, self._shared.instance, self._handover.step(number).end
        assert end is not None, "only a step that has arrived is prepared"
        with self._shared.changed:
            mark, progress = end.mark, Progress.from_dict(end.mark["progress"])
            same_batch = progress.batch == instance.progress.batch
            # This host has begun the batch anew, the origin has not. Rows that outlast their batch are not reverted.
            anew = same_batch and not instance.progress.same_attempt(progress) and not instance.progress.lasting
            if anew:
                instance.batches.revert_units(units)
                mark = mark | {"fired": False, "fired_elsewhere": [], "unfired_keys": []}
                mark |= {"watermark": mark["watermark"] | {"reported": {}}}
            elif same_batch:  # the origin, which knows that the batch must not be committed, may leave before its end
                instance.batch.spoiled = instance.batch.spoiled or mark.get("spoiled", "")
            instance.batches.merge_watermark(mark["watermark"], same_batch)
            apart = {key: (owner, epoch) for key, owner, epoch in end.apart}
            if instance.spec.timers_end_lanes:
                of_this_batch = mark if same_batch and not anew else None
                instance.timers.inherit_lanes(handover.name(number), units, apart, of_this_batch)
            else:
                instance.timers.inherit(units, mark, same_batch, end.lost)
            handover.shared.ownership.prepare(
                handover.name(number), Incoming(units, handover.origin, end.epochs, apart)
            )
            instance.memory.staged |= units
            handover.write([instance.mark_part(), instance.own_part()])
            lsn = self._shared.lsn
            self._shared.changed.notify_all()
        self._log.sync(lsn)

    def serve(self, number: int, units: Units) -> None:
        """Own the units from now on, durably."""
        handover, instance, name = self._handover, self._shared.instance, self._handover.name(number)
        with self._shared.changed:
            if name in handover.shared.ownership.incoming:
                handover.shared.ownership.serve(name)
                handover.end_accepted(units)
                parts: list[NewPart] = [instance.own_part()]
                for lane, entry in instance.batch.pending_outputs.pop(name, ()):
                    instance.ledger.record(lane, entry)
                    parts.append(ledger_part(instance.memory, lane, entry))
                handover.write(parts)
            lsn = self._shared.lsn
            self._shared.changed.notify_all()
        handover.close_step(number)
        self._log.sync(lsn)

    # -- when the units stay with the origin -------------------------------------------------------------------------

    def discard(self, number: int, units: Units) -> None:
        """Drop stale copies: the units stay with their origin. `number` -1: units that were offered and have no copies here.

        Only units that this migration has accepted are dropped: another migration may be bringing the others by now.
        """
        handover, instance = self._handover, self._shared.instance
        with self._shared.changed:
            units &= handover.accepted
            if units:
                handover.shared.ownership.drop(units)
                self._discard_copies(number, units)
                handover.end_accepted(units)
                instance.batch.pending_outputs.pop(handover.name(number), None)
                handover.write([*self._drop_unfired(units), instance.own_part()])
                self._shared.changed.notify_all()
            handover.close_step(number)

    def _discard_copies(self, number: int, units: Units) -> None:
        instance = self._shared.instance
        select = self._select(units)

        def not_mine(hashes: Any) -> Any:
            return select(hashes) & (instance.stands(hashes) == AWAY)

        keys = self._copied_keys(number, units, not_mine)
        self._handover.drop_keys([key for key in keys if not_mine(np.array([instance.key_codec.route_hash(key)]))[0]])
        instance.ledger.drop(not_mine)

    def _copied_keys(self, number: int, units: Units, not_mine: Any) -> Iterable[Key]:
        """The keys of the step. If they are not known, as after a restart, all keys of the instance are searched."""
        if number < 0:
            return ()
        step = self._handover.steps.get(number)
        if step is not None and step.keys is not None:
            return step.keys
        return scan(self._shared, not_mine) if units & self._shared.instance.memory.staged else ()

    def _drop_unfired(self, units: Units) -> list[NewPart]:
        """The timers of these units fire at their owner, not here."""
        instance = self._shared.instance
        if not instance.batch.unfired & units:
            return []
        instance.batch.unfired -= units
        return [instance.mark_part()]

    # -- copies of a standby whose origin is lost --------------------------------------------------------------------

    def take_over_copies(self, other: IncomingHandover, units: Units, batch: int) -> bool:
        """Take over copies of another migration, as one step; False if they lack some of the units. Called with the lock."""
        handover = self._handover
        accepted = other.accepted
        if units - accepted:
            return False
        copied = {key: None for step in other.steps.values() for key in step.keys or ()}
        unwanted = self._outside(units, copied) if accepted - units else []
        for key in unwanted:
            del copied[key]
        apart = tuple(key for step in other.steps.values() for key in step.apart)
        handover.steps = {TAKEN_OVER: IncomingStep(apart=apart, units=units, keys=copied, copied_up_to=batch)}
        handover.written, handover.copied_in = other.written, other.copied_in
        other.steps = {}
        other.drop_keys(unwanted)
        other.end_accepted(accepted)
        self._shared.accepted_units[handover.migration] = units
        handover.add_copies(units, apart)
        self._shared.instance.memory.staged |= units
        handover.write([self._shared.instance.own_part()])
        return True

    def _outside(self, units: Units, keys: Iterable[Key]) -> list[Key]:
        inside = selects(units, self._handover.shared.ownership)
        return self._shared.instance.memory.select_keys(list(keys), lambda hashes: ~inside(hashes))

    def drop_taken_over(self) -> None:
        """Drop the copies: the changelog is read from its beginning, and may lack removals that the copies need."""
        with self._shared.changed:
            for step in self._handover.steps.values():
                if step.copied_up_to is not None:
                    self._handover.drop_keys(list(step.keys or ()))
                    step.keys = step.copied_up_to = None

"""What an origin sends: finds the keys of the units that move, while rows go on, and makes messages of their state.

Decides which messages carry state, the batch in progress and the end of a step; not when they are sent. Everything here but
`index`, `keys_in_order` and what `ledger` returns is called with the instance's lock, so that messages have the order of what
happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from godwit.model.ownership import step_name
from godwit.model.progress import Progress
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.chunk.ownership_columns import selects
from godwit.runtime.durable.changelog_parts import ledger_part
from godwit.runtime.handover.connection import Queued
from godwit.runtime.handover.forwarding import SLICE_KEYS, KeysInOrder, KeyWatcher, Select
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.state.keys import Key
from godwit.state.ledger import Entry
from godwit.state.ledger_spill import StoredEntry

SLICE_BYTES = 256 << 10  # of one message: takes a few hundred microseconds of Python's lock
SLICE_ROWS = 2_000
LEDGER_ROWS = 1_024  # of one message, unless an entry has more
INDEX_KEYS = 500  # about half a millisecond


class Shipment:
    """`new_key` is called with every new key of the units, and its routing hash."""

    def __init__(self, shared: SharedInstance, units: Units, new_key: Callable[[Key, int], None]) -> None:
        self._shared = shared
        self._units = units
        self._new_key = new_key
        self._keys: dict[Unit, dict[Key, int]] = {}  # the keys of every unit, with their routing hashes
        self._select = selects(units, self._shared.ownership)
        self.watcher = KeyWatcher(shared, self._select, self._note)

    # -- keys --------------------------------------------------------------------------------------------------------

    def index(self) -> Iterator[None]:
        """Find the keys of all units, slice by slice. New keys are noted from now on."""
        memory = self._shared.instance.memory
        with self._shared.lock:
            self._shared.instance.followers.append(self.watcher)
            lists = memory.state.key_lists()
        for keys in lists:
            for at in range(0, len(keys), INDEX_KEYS):
                part = keys[at : at + INDEX_KEYS]
                hashes = memory.hashes_of(part)
                chosen = np.flatnonzero(self._select(hashes)).tolist()
                with self._shared.lock:
                    self._note([part[i] for i in chosen], hashes[chosen].tolist())
                yield

    def _note(self, keys: list[Key], hashes: list[int]) -> None:
        count = len(self._shared.ownership.groups)
        for key, route_hash in zip(keys, hashes, strict=True):
            unit = Unit("key", route_hash) if route_hash in self._units.keys else Unit("group", route_hash % count)
            known = self._keys.setdefault(unit, {})
            if key not in known:
                known[key] = route_hash
                self._new_key(key, route_hash)

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def sizes(self, steps: Sequence[Units]) -> list[int]:
        """About how many bytes each step has."""
        state = self._shared.instance.state
        share = state.bytes_estimate / max(state.key_count, 1)
        return [int(share * sum(len(self._keys.get(unit, ())) for unit in units)) for units in steps]

    def slice_keys(self, fitting: int) -> int:
        """How many keys go into one message: about so many as fit a slice, but fewer if keys are large."""
        state = self._shared.instance.state
        return max(1, min(fitting, SLICE_BYTES * max(state.key_count, 1) // max(state.bytes_estimate, 1)))

    def keys_in_order(self, units: Units) -> KeysInOrder:
        """The keys of these units that are known, by routing hash. A key that is noted meanwhile may be missing."""
        keys: list[Key] = []
        hashes: list[int] = []
        for unit in units:
            with self._shared.lock:
                known = self._keys.get(unit, {})
                keys += known
                hashes += known.values()
        return KeysInOrder.of(keys, np.array(hashes, np.int64))

    def of(self, units: Units) -> dict[Key, int]:
        return {key: h for unit in units for key, h in self._keys.get(unit, {}).items()}

    def keys_of(self, units: Units, select: Select) -> Collection[Key]:
        """The keys of these units. After a restart they are not noted, and are searched for."""
        if self._keys:
            return self.of(units)
        memory = self._shared.instance.memory
        return memory.select_keys(list(memory.state.keys()), select)

    def with_removed(self, keys: Collection[Key], select: Select) -> Collection[Key]:
        """Also keys that the batch in progress has removed: the next owner needs their state from before the batch."""
        gone = self._shared.instance.state.gone()
        if not gone:
            return keys
        chosen = select(np.fromiter(gone.values(), np.int64, len(gone))).tolist()
        return dict.fromkeys([*keys, *(key for key, mine in zip(gone, chosen, strict=True) if mine)])

    # -- messages ----------------------------------------------------------------------------------------------------

    def announcement(self, migration: str, step: int, units: Units, ahead: bool = False) -> Queued:
        """The first message of a step. By its epochs a target knows whether it has served the step already.

        `ahead`: rows of the step are applied here while its state is sent.
        """
        epochs = {unit: epoch + 1 for unit, epoch in self._epochs(migration, step, units).items()}
        return Queued(messages.AnnounceStep(step, units, tuple(self._shared.ownership.apart(units)), epochs, ahead))

    def _epochs(self, migration: str, step: int, units: Units) -> dict[Unit, int]:
        """The epochs in which the origin owns the units, or owned them until it released them."""
        released = self._shared.ownership.outgoing.get(step_name(migration, step))
        if released is None:
            return {unit: self._shared.ownership.epoch(unit) for unit in units}
        return {unit: epoch - 1 for unit, epoch in released.epochs.items()}

    def state(self, step: int, keys: list[Key]) -> Queued:
        """The state of the keys as it is now; encoded when it is sent."""
        batches = self._shared.instance.state.export_keys(keys, SLICE_ROWS, SLICE_BYTES)
        return Queued(messages.StepState(step), (batch.serialize() for batch in batches))

    def all_state(self, step: int, keys: Collection[Key]) -> Iterator[Queued]:
        whole = list(keys)
        return (self.state(step, whole[at : at + SLICE_KEYS]) for at in range(0, len(whole), SLICE_KEYS))

    def of_batch(self, step: int, keys: Collection[Key], entries: Iterable[tuple[str, Entry]]) -> Iterator[Queued]:
        """The state from before the batch in progress, of keys that the batch has changed; and ledger entries of the batch."""
        instance = self._shared.instance
        progress = instance.progress
        batches = instance.state.export_committed(keys, SLICE_ROWS, SLICE_BYTES)
        yield Queued(messages.StateBeforeBatch(step, progress), (batch.serialize() for batch in batches))
        for lane, entry in entries:
            info, body = ledger_part(instance.memory, lane, entry)
            yield Queued(messages.StepLedger(step, progress, info), iter([body]))

    def ledger(self, step: int, select: Select) -> Iterator[Queued | None]:
        """Entries as they are now, of the batch in progress and of earlier batches whose rows outlast them.

        The messages are made later, one by one, without the lock. None: an entry was read, and there is no message yet.
        """
        instance = self._shared.instance
        return self._entries(step, select, (instance.progress, instance.ledger.output_schema), instance.ledger.stored())

    def in_same_batch(self, progress: Progress) -> bool:
        """Whether anyone needs what belongs to this batch alone: not if it is committed, or begins anew."""
        return self._shared.instance.progress.same_attempt(progress)

    def _entries(
        self, step: int, select: Select, of: tuple[Progress, pa.Schema], stored: list[tuple[str, StoredEntry]]
    ) -> Iterator[Queued | None]:
        """Parts of neighbours go together: a message costs the target about a millisecond, however few rows it has."""
        progress, schema = of
        before: tuple[str, Entry] | None = None
        for lane, each in stored:
            with self._shared.lock:
                ledger, present = self._shared.instance.ledger, self._shared.instance.progress
                outlast = progress.lasting and present.lasting
                anew = ledger.output_schema is not schema  # after another definition of the operator
                if not outlast and (anew or not self.in_same_batch(progress)):
                    return  # a later run begins the batch anew, or nobody needs the entries of this batch
                again = self.ledger(step, select) if anew else None
                entry = None if anew else ledger.read(each)
            if again is not None:  # the entries have other outputs now; the target leaves out rows that it has
                yield from again
                return
            assert entry is not None
            part = entry.of(select)
            if len(part.rows):
                both = before[1].joined_with(part, LEDGER_ROWS) if before is not None and before[0] == lane else None
                if before is not None and both is None:
                    yield self._entry(step, progress, *before)
                before = (lane, part if both is None else both)
            yield None
        if before is not None:
            yield self._entry(step, progress, *before)

    def _entry(self, step: int, progress: Progress, lane: str, entry: Entry) -> Queued:
        info, body = ledger_part(self._shared.instance.memory, lane, entry)
        return Queued(messages.StepLedger(step, progress, info), iter([body]))

    def end(self, migration: str, step: int, units: Units) -> Queued:
        """The last message of a step, with the epochs in which the origin owns it, or owned it until it released it."""
        ownership = self._shared.ownership
        mark, _ = self._shared.instance.mark_part()
        apart = tuple((key, *owner) for key, owner in ownership.apart(units).items())
        released = step_name(migration, step) in ownership.outgoing
        return Queued(
            messages.StepEnd(step, units, self._epochs(migration, step, units), apart, mark, released=released)
        )

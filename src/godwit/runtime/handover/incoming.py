"""What a target knows of one hand-over, in one object, with the lock rule: which thread may use which field.

Holds facts; decides nothing. The machine (`migration.target`) decides, `receiver` runs the machine, `copies` takes up the state
that arrives, and `target_effects` carries out the effects of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from godwit.model.ownership import step_name
from godwit.model.progress import Progress
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.durable.journal import NewPart
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.state.keys import Key
from godwit.transport.typed import Epochs


@dataclass(slots=True)
class IncomingStep:
    """What has arrived of one step, on the present connection."""

    apart: tuple[int, ...] = ()  # keys that the origin knows to be apart from the step's groups
    epochs: Epochs = field(default_factory=dict)  # in which the target is to own the step, if the origin says so
    units: Units | None = None  # None before the machine has accepted the announcement
    keys: dict[Key, None] | None = None  # keys whose copies are here; None if they are not known
    ahead: bool = False  # the origin applies rows of the step while its state comes: nobody waits for the state
    end: messages.StepEnd | None = None  # the last message of a step
    copied_up_to: int | None = None  # the origin's batch at the last message; None until the copy is complete
    lacks_rows_of: Progress | None = (
        None  # the ledger has no rows of this run, which was unrelated to the target's own run
    )

    def add_keys(self, keys: list[Key]) -> None:
        self.keys = self.keys or {}
        self.keys.update(dict.fromkeys(keys))


class SendAgain(Exception):
    """The origin must send the step again from its beginning, on another connection. No error: the origin has released it."""


class IncomingHandover:
    """All that the target knows of one migration, beside its machine.

    The lock rule. Locks are taken in this order only:
    1. The receiver's `_acting` lets the receiver handle one event at a time: a message of the newest connection, the end of
       that connection, or an answer of the origin to a question. It guards the machine and all fields of this object. A
       thread that holds it may wait for the changelog and for `shared.changed`.
    2. The instance's lock (`shared.lock`; `shared.changed` is its condition) guards the instance, its ownership and ledger, and
       `shared.accepted_units` and `shared.copied_groups`. A thread that holds it does not wait for the changelog; it waits for
       `shared.changed` only.
       Threads whose rows wait call `Receiver.want` with this lock, without `_acting`: `want` reads which units the machine
       expects, and writes one short message.
    3. The lock of `Receiver.answers` guards the stream's writer. A thread that holds it takes no other lock.
    An heir that takes over copies of another migration locks that migration's `_acting` before its own.
    """

    def __init__(self, services: HostServices, shared: SharedInstance, migration: str, origin: str) -> None:
        self.services = services
        self.shared = shared
        self.migration = migration
        self.origin = origin
        self.steps: dict[int, IncomingStep] = {}
        self.written: tuple[int, int] | None = None  # how far the origin's changelog was durable: generation and lsn
        self.copied_in = -1  # the origin's batch when the last copy became complete

    def step(self, number: int) -> IncomingStep:
        return self.steps.setdefault(number, IncomingStep())

    def close_step(self, number: int) -> None:
        self.steps.pop(number, None)

    def name(self, number: int) -> str:
        return step_name(self.migration, number)

    @property
    def copied_up_to(self) -> dict[int, int]:
        """For each step whose copy is complete: the origin's batch at the last message about the step."""
        return {number: step.copied_up_to for number, step in self.steps.items() if step.copied_up_to is not None}

    # -- with the instance's lock ------------------------------------------------------------------------------------

    @property
    def accepted(self) -> Units:
        """The units of which this migration may have copies here."""
        return self.shared.accepted_units.get(self.migration, Units())

    def add_accepted(self, units: Units) -> None:
        self.shared.accepted_units[self.migration] = self.accepted | units

    def add_copies(self, units: Units, apart: Iterable[int]) -> None:
        """State of these units comes, or has come; but none of keys that are `apart` from their groups."""
        if units.groups:
            copied = self.shared.copied_groups.setdefault(self.migration, {})
            copied.update(dict.fromkeys(units.groups, frozenset(apart)))

    def end_accepted(self, units: Units) -> None:
        """The host owns the units now, or has dropped their copies."""
        self.shared.check_locked()
        self.shared.instance.memory.staged -= units
        left = self.shared.accepted_units.pop(self.migration, Units()) - units
        if left:
            self.shared.accepted_units[self.migration] = left
        copied = self.shared.copied_groups.pop(self.migration, {})
        if copied_left := {group: apart for group, apart in copied.items() if group not in units.groups}:
            self.shared.copied_groups[self.migration] = copied_left

    def write(self, parts: list[NewPart]) -> None:
        """Memory has changed already: if the parts cannot be written, the host ends."""
        self.shared.check_locked()
        self.shared.instance.write(parts)

    def drop_keys(self, keys: list[Key]) -> None:
        self.shared.check_locked()
        if keys:
            self.shared.instance.keys.drop(keys, settled=True)


def scan(shared: SharedInstance, select: Callable[[Any], Any]) -> list[Key]:
    """The keys of the instance whose routing hashes are selected; called with the instance's lock."""
    shared.check_locked()
    memory = shared.instance.memory
    return memory.select_keys(list(memory.state.keys()), select)

"""What an origin knows of one hand-over, in one object, with the lock rule: which thread may use which field.

Holds facts; decides nothing. The machine (`migration.origin`) decides, `mover` runs the machine, and `origin_effects` carries
out its effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from godwit import ports
from godwit.migration.events import Event
from godwit.model.ownership import step_name
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.handover.connection import Queued, SendQueue
from godwit.runtime.handover.forwarding import Forwarder
from godwit.runtime.handover.shipment import Shipment
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.pacing.turns import Turns
from godwit.state.keys import Key


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
    phases: list[tuple[str, float]] = field(default_factory=list)  # name, and milliseconds since the beginning


@dataclass(slots=True)
class OutgoingStep:
    """What the origin has sent of one step, on the present connection."""

    forwarder: Forwarder | None = None  # set while rows are applied to keys that were copied
    copied: set[Key] | None = None  # the keys of the step, once all of them have been copied
    shipped: bool = False  # all that the target lacks of the step is on its way
    markers: int = 0  # that the target has reached
    batch_sent: bool = False  # whether ledger and earlier state of the batch in progress were sent with the copy


class OutgoingHandover:
    """All that the origin knows of one migration, beside its machine.

    The lock rule:
    - One thread, the mover's, runs the machine and carries out its effects. Fields that are not named below belong to it.
    - The instance's lock (`shared.lock`; `shared.changed` is its condition) guards the instance, its ownership and ledger, the
      keys in `shipment`, and every step's forwarder: threads that apply rows use all of these.
    - Only the mover's thread sets and removes forwarders, and it does so with the instance's lock. Only the mover's thread
      replaces `_steps`. The mover's thread may read forwarders and `_steps` without the lock.
    - A message about a change of keys is put in `queue` with the instance's lock. So the target gets such messages in the order
      of the changes.
    - A thread that holds the instance's lock neither writes to the network nor waits for the changelog. It waits for
      `shared.changed` only.
    - The lock of `news` is taken last and only to count: a thread that holds it takes no other lock.
    - `figures` are written by the mover's thread and may be read by any thread: each figure is correct by itself.
    - `queue` needs no lock: any thread may post an event.
    """

    def __init__(
        self, services: HostServices, shared: SharedInstance, request: messages.StartMigration, resumed: bool
    ) -> None:
        self.services = services
        self.shared = shared
        self.request = request
        self.resumed = resumed  # an earlier generation of this host has released all of the steps
        self.units = union(request.steps)
        self.queue: SendQueue = ports.queue()  # messages for the target, and events for the machine
        self.slices: deque[tuple[int, Iterator[None]]] = deque()  # (step, work): each item of the work sends one slice
        self.to_forget: deque[Iterator[None]] = (
            deque()
        )  # by step that the target owns: each item drops a slice of its state
        self.turns = Turns(shared.chunks)  # of the mover's thread
        self.figures = Figures(ports.now_s(), services.clock_ms())
        self.news = ports.condition()  # signalled when `news_count` grows
        self.news_count = 0
        self._steps: dict[int, OutgoingStep] = {}  # replaced, never changed: other threads iterate over it
        if not resumed:
            with shared.lock:
                self.shared.ownership.begin_move(self.units)
        self.shipment = Shipment(shared, self.units, self._new_key)

    def step(self, number: int) -> OutgoingStep:
        """The facts of a step that is under way."""
        if number not in self._steps:
            self._steps = {**self._steps, number: OutgoingStep()}
        return self._steps[number]

    def close_step(self, number: int) -> None:
        """The step is at its target, or stays here."""
        self._steps = {known: step for known, step in self._steps.items() if known != number}

    def name(self, number: int) -> str:
        return step_name(self.request.id, number)

    def post(self, event: Event) -> None:
        self.queue.put(event)

    def connection_ended(self) -> None:
        """The target drops its copies, so the slices that were still to be sent are of no use."""
        self.slices.clear()
        self.turns.forget_sent()
        for step in self._steps.values():
            step.copied, step.shipped, step.batch_sent, step.markers = None, False, False, 0

    # -- slices ------------------------------------------------------------------------------------------------------

    def cancel_slices(self, number: int) -> None:
        """Send no further slices of a step: the target does not need them any more."""
        self.slices = deque((of, work) for of, work in self.slices if of != number)

    def last_slices(self, number: int) -> int | None:
        """The position in `slices` of the last work of a step; None if there is none."""
        return max((at for at, (of, _) in enumerate(self.slices) if of == number), default=None)

    # -- forwarding, with the instance's lock ------------------------------------------------------------------------

    def _new_key(self, key: Key, route_hash: int) -> None:
        self.shared.check_locked()
        for step in self._steps.values():
            if step.forwarder is not None:
                step.forwarder.add_key(key, route_hash)

    def forwarder(self, number: int) -> Forwarder | None:
        step = self._steps.get(number)
        return None if step is None else step.forwarder

    def start_forwarding(self, number: int, forwarder: Forwarder) -> None:
        self.shared.check_locked()
        self.step(number).forwarder = forwarder
        self.shared.instance.followers.append(forwarder)

    def stop_forwarding(self, number: int) -> None:
        self.shared.check_locked()
        step = self.step(number)
        if step.forwarder is not None:
            self.shared.instance.followers.remove(step.forwarder)
            step.forwarder = None

    def end(self) -> None:
        """Nothing more is forwarded, and the units may move again."""
        with self.shared.lock:
            for number in list(self._steps):
                self.stop_forwarding(number)
            if self.shipment.watcher in self.shared.instance.followers:
                self.shared.instance.followers.remove(self.shipment.watcher)
            if self.post in self.shared.event_listeners:
                self.shared.event_listeners.remove(self.post)
            if not self.resumed:
                self.shared.ownership.end_move(self.units)

    # -- progress, for other threads ---------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.figures.ended_ms is not None

    def announce_news(self) -> None:
        with self.news:
            self.news_count += 1
            self.news.notify_all()

    def note_phase(self, phase: str) -> None:
        """Record when a phase was reached: shows where the time of a migration goes."""
        self.figures.phases.append((phase, (ports.now_s() - self.figures.began_s) * 1000))
        if phase == "ended":
            self.figures.ended_ms = self.services.clock_ms()
            self.announce_news()

    def note_served(self, units: Units) -> None:
        """The target serves these units."""
        self.figures.moved |= {unit: self.shared.ownership.epoch(unit) for unit in units}
        self.note_phase("served")

    def count_sent(self, queued: Queued, sent_bytes: int) -> None:
        if queued.forwarded:
            self.figures.rows_forwarded += queued.forwarded
            self.figures.bytes_forwarded += sent_bytes
        else:
            self.figures.bytes += sent_bytes


def union(steps: tuple[Units, ...]) -> Units:
    groups: frozenset[int] = frozenset().union(*(units.groups for units in steps))
    keys: frozenset[int] = frozenset().union(*(units.keys for units in steps))
    return Units(groups, keys)

"""Tells of all that movers and receivers carry out, and of batches that hosts open: for the story, and for faults after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from godwit.errors import InvariantBroken, NotReplayable
from godwit.migration.origin import Origin
from godwit.migration.target import Target
from godwit.runtime.durable.work import Work
from godwit.runtime.handover.origin_effects import OriginEffects
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.instance.batch_checks import BatchChecks
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.messages import OpenLane
from godwit.runtime.takeover import rescue
from godwit.state.ledger_spill import Scratch
from tests.sim.kernel import Kernel

Effected = Callable[[str, str, Any], None]  # host, migration, effect


@dataclass(frozen=True, slots=True)
class Fire:
    """A lane that is made by key has ended, and its timers fire."""

    operator: str
    batch: int
    lane: str


@dataclass(frozen=True, slots=True)
class Open:
    """A lane opens a batch at a host, which may fire timers."""

    operator: str
    batch: int
    lane: str


@contextmanager
def watched(kernel: Kernel, tell: Effected, spills: Callable[[], None]) -> Iterator[None]:
    """Each effect is told before it is carried out; points have names before and after it. `spills`: may fail."""
    origin_do, receiver_do, open_lane, fire, write_will, spoil, spill = (
        OriginEffects.do,
        Receiver._do,
        LaneExchange._open,
        LaneExchange._fire,
        rescue.write_will,
        BatchChecks.spoil,
        Scratch.append,
    )

    def around(host: str, migration: str, effect: Any, do: Callable[[], None]) -> None:
        name = f"{host} {migration} {type(effect).__name__} {getattr(effect, 'step', '')}".rstrip()
        tell(host, migration, effect)
        kernel.points.reach(name)
        do()
        kernel.points.reach(f"{name} done")

    def at_origin(effects: OriginEffects, effect: Any) -> None:
        handover = effects.handover
        around(handover.services.host, handover.request.id, effect, lambda: origin_do(effects, effect))

    def at_target(receiver: Receiver, effect: Any) -> None:
        around(receiver.handover.services.host, receiver.id, effect, lambda: receiver_do(receiver, effect))

    def at_batch(exchange: LaneExchange, shared: SharedInstance, lane: OpenLane) -> Work:
        host, operator = exchange._services.host, shared.instance.spec.name
        tell(host, "", Open(operator, lane.batch, lane.lane))
        kernel.points.reach(f"{host} opens {operator} {lane.batch}")
        return open_lane(exchange, shared, lane)

    def at_end_of_lane(exchange: LaneExchange, shared: SharedInstance, lane: OpenLane) -> Any:
        host, operator = exchange._services.host, shared.instance.spec.name
        tell(host, "", Fire(operator, lane.batch, lane.lane))
        name = f"{host} fires {operator} {lane.batch} {lane.lane}"
        kernel.points.reach(name)
        fired = fire(exchange, shared, lane)
        kernel.points.reach(f"{name} done")
        return fired

    def at_will(directory: Path, *rest: Any) -> None:
        kernel.points.reach(f"will of {directory.name}")
        write_will(directory, *rest)
        kernel.points.reach(f"will of {directory.name} done")

    def at_refusal(checks: BatchChecks, error: NotReplayable) -> NotReplayable:
        """Rows did not replay, so the host takes nothing more of the batch in this run."""
        refused, memory = spoil(checks, error), checks._memory
        kernel.tell(memory.name, "refuses batch", memory.progress.batch, error)
        kernel.points.reach(f"{memory.name} refuses {memory.progress.batch}")
        return refused

    def at_spill(scratch: Scratch, body: bytes) -> int:
        spills()
        return spill(scratch, body)

    with ExitStack() as stack:
        for owner, name, instead in (
            (BatchChecks, "spoil", at_refusal),
            (Scratch, "append", at_spill),
            (OriginEffects, "do", at_origin),
            (Receiver, "_do", at_target),
            (LaneExchange, "_open", at_batch),
            (LaneExchange, "_fire", at_end_of_lane),
            (rescue, "write_will", at_will),
        ):
            stack.enter_context(patch.object(owner, name, instead))
        yield


@contextmanager
def impossible_events_end(kernel: Kernel) -> Iterator[None]:
    """A mover or a receiver would abort its migration, and go on: here the run ends."""
    origin_on, target_on = Origin.on, Target.on

    def ending(on: Callable[[Any, Any], Any]) -> Any:
        def checked(machine: Any, event: Any) -> Any:
            try:
                return on(machine, event)
            except InvariantBroken as error:
                kernel.failures.append((kernel.current(), error))
                raise

        return checked

    Origin.on, Target.on = ending(origin_on), ending(target_on)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Origin.on, Target.on = origin_on, target_on  # type: ignore[method-assign]

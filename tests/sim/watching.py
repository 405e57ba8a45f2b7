"""Tells of all that movers and receivers carry out, and of batches that hosts open: for the story, and for faults after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from godwit.runtime.handover.origin_effects import OriginEffects
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.memory.work import Work
from godwit.runtime.messages import OpenLane

Effected = Callable[[str, str, Any], None]  # host, migration, effect


@dataclass(frozen=True, slots=True)
class Open:
    """A lane opens a batch at a host, which may fire timers."""

    operator: str
    batch: int
    lane: str


@contextmanager
def watched(tell: Effected) -> Iterator[None]:
    """Before an effect is carried out."""
    origin_do, receiver_do, open_lane = OriginEffects.do, Receiver._do, LaneExchange._open

    def at_origin(effects: OriginEffects, effect: Any) -> None:
        tell(effects.handover.services.host, effects.handover.request.id, effect)
        origin_do(effects, effect)

    def at_target(receiver: Receiver, effect: Any) -> None:
        tell(receiver.handover.services.host, receiver.id, effect)
        receiver_do(receiver, effect)

    def at_batch(exchange: LaneExchange, shared: SharedInstance, lane: OpenLane) -> Work:
        tell(exchange._port.host, "", Open(shared.instance.spec.name, lane.batch, lane.lane))
        return open_lane(exchange, shared, lane)

    OriginEffects.do, Receiver._do = at_origin, at_target  # type: ignore[method-assign]
    LaneExchange._open = at_batch  # type: ignore[method-assign]
    try:
        yield
    finally:
        OriginEffects.do, Receiver._do = origin_do, receiver_do  # type: ignore[method-assign]
        LaneExchange._open = open_lane  # type: ignore[method-assign]

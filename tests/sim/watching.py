"""Tells of all that movers and receivers carry out, and of batches that hosts open: for the story, and for faults after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from godwit.model.progress import BatchRef
from godwit.runtime.handover.mover import Mover
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.host.exchange import Exchange
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.memory.work import Work

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
    mover_do, receiver_do, opened = Mover._do, Receiver._do, Exchange._opened

    def at_origin(mover: Mover, effect: Any) -> None:
        tell(mover._port.host, mover.order.id, effect)
        mover_do(mover, effect)

    def at_target(receiver: Receiver, effect: Any) -> None:
        tell(receiver._port.host, receiver.id, effect)
        receiver_do(receiver, effect)

    def at_batch(exchange: Exchange, shared: SharedInstance, request: BatchRef, lane: str, *how: Any) -> Work:
        tell(exchange._host, "", Open(shared.instance.spec.name, request.batch, lane))
        return opened(exchange, shared, request, lane, *how)

    Mover._do, Receiver._do = at_origin, at_target  # type: ignore[method-assign]
    Exchange._opened = at_batch  # type: ignore[method-assign]
    try:
        yield
    finally:
        Mover._do, Receiver._do = mover_do, receiver_do  # type: ignore[method-assign]
        Exchange._opened = opened  # type: ignore[method-assign]

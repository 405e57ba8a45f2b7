"""Known holes of published systems, and some that this product had: each is put back into the product's own code for a run.

A hole replaces one method or another of the product's classes (or a line of a protocol's table); everything else stays as it
is. What finds the hole is an invariant, within a number of seeds that is small enough to be run each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

from godwit.migration import target
from godwit.migration.events import AbortReported, ReleaseReported
from godwit.model.ownership import Outgoing, Ownership, Stand
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.handover.connection import Queued
from godwit.runtime.handover.copies import Copies
from godwit.runtime.handover.forwarding import Forwarder
from godwit.runtime.handover.incoming import scan
from godwit.runtime.handover.origin_effects import OriginEffects
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.handover.shipment import Shipment
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.host.migration_service import Moves
from godwit.runtime.memory.memory import Memory
from godwit.runtime.memory.ownership_columns import selects
from godwit.runtime.router.router import Router

Change = tuple[Any, str, Any]  # of a class or module: the name, and what stands there instead
_holes: dict[str, Hole] = {}


@dataclass(frozen=True, slots=True)
class Hole:
    """`found_by`: the invariants of which one or another is broken first; `seeds`: within how many, from `first` on.

    `first` spares every test run the way to a rare one. `protocol`: the only one by which keys move.
    """

    name: str
    about: str
    changes: Callable[[], Iterable[Change]]
    found_by: frozenset[str]
    seeds: int
    protocol: str | None
    first: int

    @contextmanager
    def put_back(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, instead in self.changes():
                stack.enter_context(patch.object(owner, name, instead))
            yield


def hole(
    about: str, found_by: str, seeds: int = 60, protocol: str | None = None, first: int = 0
) -> Callable[[Callable[[], Iterable[Change]]], Hole]:
    def make(changes: Callable[[], Iterable[Change]]) -> Hole:
        name = changes.__name__.replace("_", "-")
        _holes[name] = Hole(name, about, changes, frozenset(found_by.split()), seeds, protocol, first)
        return _holes[name]

    return make


HOLES = _holes


def nothing(*_: Any, **__: Any) -> None:
    return None


class UnwrittenLog:
    """A changelog whose writes nobody waits for."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def flush(self, lsn: int) -> None:
        return

    sync = flush


# -- order -----------------------------------------------------------------------------------------------------------


@hole(
    "a router uses a new route while earlier rows of the key are on their way to the old owner (fetch, as published)",
    "I3",
    first=9,
)
def new_route_at_once() -> Iterable[Change]:
    collect = Router._collect

    def at_once(router: Router, left: int) -> Iterator[Any]:
        router._rounds.learnt = False
        for outputs in collect(router, left):
            yield outputs
            router._rounds.learnt = False

    return [(Router, "_collect", at_once)]


# -- the origin lets go ----------------------------------------------------------------------------------------------


def _forget_all(effects: OriginEffects, units: Units) -> None:
    """As the origin does when the target has confirmed."""
    ownership = effects._shared.instance.ownership
    assert ownership is not None, "only instances with an ownership take part in migrations"
    with effects._shared.lock:
        effects._shared.instance.keys.drop(scan(effects._shared, selects(units, ownership)), settled=True)


@hole("a unit in flight is lost with a crash: the origin forgets it when it has shipped it", "I2 I4 I5", first=0)
def forget_when_shipped() -> Iterable[Change]:
    send = OriginEffects.send

    def and_forget(effects: OriginEffects, out: Queued) -> None:
        send(effects, out)
        if isinstance(out.message, messages.StepEnd):
            _forget_all(effects, out.message.units)

    return [(OriginEffects, "send", and_forget)]


@hole("the old owner goes on applying rows after the cut", "I1 I2 I3 I4 I6", first=6)
def still_applies() -> Iterable[Change]:
    stands = Memory.stands

    def as_before_the_cut(memory: Memory, hashes: Any) -> Any:
        found = stands(memory, hashes)
        found[found == int(Stand.CUT)] = int(Stand.MINE)
        return found

    return [(Memory, "stands", as_before_the_cut)]


@hole("ownership does not count its changes, so old word of it is taken for new", "I1 I2 I4 I6", first=1)
def epochs_stay() -> Iterable[Change]:
    def release(ownership: Ownership, step: str, units: Units, to: str) -> None:
        ownership._change(units, {Stand.CUT}, Stand.AWAY, to)
        ownership.outgoing[step] = Outgoing(units, to, {unit: ownership.share(unit).epoch for unit in units})

    return [(Ownership, "release", release)]


# -- copy and replay -------------------------------------------------------------------------------------------------


@hole("rows are no longer forwarded once all is copied, before the end cut", "I2 I3 I4 I5", protocol="live", first=3)
def forwarding_ends_early() -> Iterable[Change]:
    applied = Forwarder.applied

    def while_copying(forwarder: Forwarder, *told: Any) -> None:
        if forwarder._frontier is not None:
            applied(forwarder, *told)

    return [(Forwarder, "applied", while_copying)]


@hole("duplicates are told apart by what does not travel with the key", "I2 I3 I4", first=18)
def ledger_stays() -> Iterable[Change]:
    of_batch = Shipment.of_batch

    def without_entries(shipment: Shipment, step: int, keys: Any, entries: Any) -> Iterator[Queued]:
        del entries
        return of_batch(shipment, step, keys, ())

    return [(Shipment, "of_batch", without_entries)]


@hole(
    "what keys held before the batch in progress does not travel: a new run reverts nothing of them", "I2 I4", first=2
)
def images_stay() -> Iterable[Change]:
    return [(Copies, "state_before_batch", nothing)]


# -- the target decides ----------------------------------------------------------------------------------------------


def _table(lines: dict[Any, Any]) -> Change:
    return target, "TABLE", {**target.TABLE, **lines}


@hole(
    "the target does not wait for all of a step that was released",
    "I1 I2 I4 I5 I6",
    protocol="live-unordered",
    first=0,
)
def serve_before_all_came() -> Iterable[Change]:
    return [_table({(target.TargetPhase.ABSENT, ReleaseReported): (target.TargetPhase.SERVING, target.serve)})]


@hole("the target decides that it owns what it has prepared when the connection is lost", "I1", first=100)
def lost_connection_serves() -> Iterable[Change]:
    def serve(receiver: Receiver, step: int) -> None:
        receiver._handle(ReleaseReported(step))

    return [(Receiver, "ask_outcome", serve)]


@hole(
    "the target drops what it has prepared when the connection is lost, and the origin has forgotten it",
    "I2 I4 I5 I6",
    first=0,
)
def lost_connection_drops() -> Iterable[Change]:
    release = OriginEffects.release

    def drop(receiver: Receiver, step: int) -> None:
        receiver._handle(AbortReported(step))

    def and_forget(effects: OriginEffects, step: int, units: Units) -> None:
        release(effects, step, units)
        _forget_all(effects, units)

    return [(Receiver, "ask_outcome", drop), (OriginEffects, "release", and_forget)]


@hole("a target takes a step that it has served for a new one", "I1 I2 I5 I6", first=6)
def served_is_taken_in_again() -> Iterable[Change]:
    return [(Ownership, "served", lambda *_: False)]


@hole("copies that never became a host's own are left where a restart finds them", "I1 I2 I4 I6", first=6)
def copies_outlive_a_restart() -> Iterable[Change]:
    return [(Moves, "_drop_copies", nothing)]


# -- single keys -----------------------------------------------------------------------------------------------------


# -- durability ------------------------------------------------------------------------------------------------------


@hole("a host answers, and lets tasks end, before the work is in its changelog", "I2 I3 I4 I5 I6", first=11)
def answer_before_durable() -> Iterable[Change]:
    init = LaneExchange.__init__

    def unwritten(exchange: LaneExchange, *given: Any) -> None:
        init(exchange, *given)
        exchange._log = cast(Any, UnwrittenLog(exchange._log))

    return [(LaneExchange, "__init__", unwritten)]


# -- lost hosts ------------------------------------------------------------------------------------------------------

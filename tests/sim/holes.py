"""Known holes of published systems, and some that this product had: each is put back into the product's own code for a run.

A hole replaces one method or another of the product's classes (or a line of a protocol's table); everything else stays as it
is. What finds the hole is an invariant, in the schedule that was recorded for it (`tests/sim/recorded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest.mock import patch

from godwit import ports
from godwit.migration import PROTOCOLS, origin, target
from godwit.migration.events import AbortReported, Declined, Missing, ReleaseReported
from godwit.model.fired_lanes import FiredLanes
from godwit.model.ownership import Outgoing, Ownership, Stand
from godwit.model.refusals import Refusals
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.chunk.ownership_columns import selects
from godwit.runtime.durable.batch_in_progress import BatchInProgress
from godwit.runtime.durable.durable_changes import DurableChanges
from godwit.runtime.durable.memory import Memory
from godwit.runtime.handover import mover as mover_module
from godwit.runtime.handover.connection import Queued
from godwit.runtime.handover.copies import Copies
from godwit.runtime.handover.forwarding import Forwarder, KeyWatcher
from godwit.runtime.handover.incoming import scan
from godwit.runtime.handover.mover import Mover
from godwit.runtime.handover.origin_effects import OriginEffects
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.handover.shipment import Shipment
from godwit.runtime.handover.target_effects import TargetEffects
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.host.migration_service import MigrationService
from godwit.runtime.instance.batches import Batches
from godwit.runtime.instance.lane_requests import LaneRequests
from godwit.runtime.router.host_requests import FireRequest
from godwit.runtime.router.link import Link
from godwit.runtime.router.router import Router
from godwit.runtime.takeover import rescue
from godwit.state.ledger import Entry, Ledger

Change = tuple[Any, str, Any]  # of a class or module: the name, and what stands there instead
_holes: dict[str, Hole] = {}


@dataclass(frozen=True, slots=True)
class Hole:
    """`found_by`: the invariants of which one or another is broken first. `protocol`: the only one by which keys move."""

    name: str
    about: str
    changes: Callable[[], Iterable[Change]]
    found_by: frozenset[str]
    protocol: str | None

    @contextmanager
    def put_back(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, instead in self.changes():
                stack.enter_context(patch.object(owner, name, instead))
            yield


def hole(about: str, found_by: str, protocol: str | None = None) -> Callable[[Callable[[], Iterable[Change]]], Hole]:
    def make(changes: Callable[[], Iterable[Change]]) -> Hole:
        name = changes.__name__.replace("_", "-")
        _holes[name] = Hole(name, about, changes, frozenset(found_by.split()), protocol)
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
)
def new_route_at_once() -> Iterable[Change]:
    collect = Router._collect

    def at_once(router: Router, left: int) -> Iterator[Any]:
        router._rounds.learnt = False
        for outputs in collect(router, left):
            yield outputs
            router._rounds.learnt = False

    return [(Router, "_collect", at_once)]


@hole(
    "a host that has refused rows of a key takes later ones, while the refused ones are on their way round",
    "I3",
)
def refusals_are_forgotten() -> Iterable[Change]:
    return [(Refusals, "add", nothing)]


@hole("after a break later chunks go again while an earlier row is still on its way round", "I3")
def resend_at_once() -> Iterable[Change]:
    return [(Link, "_hold_back", nothing)]


# -- the origin lets go ----------------------------------------------------------------------------------------------


def _protocols(lines: dict[Any, Any]) -> Change:
    """With other lines in the table of each."""
    changed = {name: replace(protocol, table={**protocol.table, **lines}) for name, protocol in PROTOCOLS.items()}
    return mover_module, "PROTOCOLS", changed


def _forget_all(effects: OriginEffects, units: Units) -> None:
    """As the origin does when the target has confirmed."""
    ownership = effects._shared.instance.ownership
    assert ownership is not None, "only instances with an ownership take part in migrations"
    with effects._shared.lock:
        effects._shared.instance.keys.drop(scan(effects._shared, selects(units, ownership)), settled=True)


@hole("a unit in flight is lost with a crash: the origin forgets it when it has shipped it", "I2 I4 I5")
def forget_when_shipped() -> Iterable[Change]:
    send = OriginEffects.send

    def and_forget(effects: OriginEffects, out: Queued) -> None:
        send(effects, out)
        if isinstance(out.message, messages.StepEnd):
            _forget_all(effects, out.message.units)

    return [(OriginEffects, "send", and_forget)]


@hole("the target is told before the record is durable: a restarted origin owns again", "I1 I2 I4")
def release_before_durable() -> Iterable[Change]:
    release = OriginEffects.release

    def unwritten(effects: OriginEffects, step: int, units: Units) -> None:
        log = effects._log
        effects._log = cast(Any, UnwrittenLog(log))
        try:
            release(effects, step, units)
        finally:
            effects._log = log

    return [(OriginEffects, "release", unwritten)]


@hole("an origin whose step was declined keeps its rows waiting for a batch, which waits for those rows", "I6")
def declined_waits_for_a_router() -> Iterable[Change]:
    return [_protocols({(origin.Phase.CUT, Declined): (origin.Phase.WAITING, origin.nothing)})]


@hole("the old owner goes on applying rows after the cut", "I1 I2 I3 I4 I6")
def still_applies() -> Iterable[Change]:
    stands = Memory.stands

    def as_before_the_cut(memory: Memory, hashes: Any) -> Any:
        found = stands(memory, hashes)
        found[found == int(Stand.CUT)] = int(Stand.MINE)
        return found

    return [(Memory, "stands", as_before_the_cut)]


@hole("ownership does not count its changes, so old word of it is taken for new", "I1 I2 I4 I6")
def epochs_stay() -> Iterable[Change]:
    def release(ownership: Ownership, step: str, units: Units, to: str) -> None:
        ownership._change(units, {Stand.CUT}, Stand.AWAY, to)
        ownership.outgoing[step] = Outgoing(units, to, {unit: ownership.share(unit).epoch for unit in units})

    return [(Ownership, "release", release)]


# -- copy and replay -------------------------------------------------------------------------------------------------


@hole("state is read when it is sent, later than its place in line: rows in between count twice", "I2 I3 I4 I5")
def copy_and_replay() -> Iterable[Change]:
    state = Shipment.state

    def late(shipment: Shipment, step: int, keys: list[Any]) -> Queued:
        def bodies() -> Iterator[Any]:
            ports.sleep(0.01)  # rows come in between
            yield from state(shipment, step, keys).bodies or ()

        return Queued(messages.StepState(step), bodies())

    return [(Shipment, "state", late)]


class _Overtaking:
    """A queue in which messages are sent at once, and only events wait."""

    def __init__(self, effects: OriginEffects) -> None:
        self._queue, self._send = effects.handover.queue, effects.send

    def put(self, item: Any) -> None:
        self._send(item) if isinstance(item, Queued) else self._queue.put(item)


@hole("the end marker is not in order with what is forwarded before it", "I2 I3 I4 I5")
def end_overtakes() -> Iterable[Change]:
    ship = OriginEffects._ship

    def overtaking(effects: OriginEffects, step: int, units: Units) -> None:
        queue = effects.handover.queue
        effects.handover.queue = cast(Any, _Overtaking(effects))
        try:
            ship(effects, step, units)
        finally:
            effects.handover.queue = queue

    return [(OriginEffects, "_ship", overtaking)]


@hole("rows are no longer forwarded once all is copied, before the end cut", "I2 I3 I4 I5", protocol="live")
def forwarding_ends_early() -> Iterable[Change]:
    applied = Forwarder.applied

    def while_copying(forwarder: Forwarder, *told: Any) -> None:
        if forwarder._frontier is not None:
            applied(forwarder, *told)

    return [(Forwarder, "applied", while_copying)]


@hole("duplicates are told apart by what does not travel with the key", "I2 I3 I4")
def ledger_stays() -> Iterable[Change]:
    of_batch = Shipment.of_batch

    def without_entries(shipment: Shipment, step: int, keys: Any, entries: Any) -> Iterator[Queued]:
        del entries
        return of_batch(shipment, step, keys, ())

    def no_ledger(shipment: Shipment, step: int, select: Any) -> Iterator[Queued]:
        del shipment, step, select
        return iter(())

    return [(Shipment, "of_batch", without_entries), (Shipment, "ledger", no_ledger)]


@hole("what keys held before the batch in progress does not travel: a new run reverts nothing of them", "I2 I4")
def images_stay() -> Iterable[Change]:
    return [(Copies, "state_before_batch", nothing)]


# -- the target decides ----------------------------------------------------------------------------------------------


def _table(lines: dict[Any, Any]) -> Change:
    return target, "TABLE", {**target.TABLE, **lines}


@hole("the target does not wait for all of a step that was released", "I1 I2 I4 I5 I6", protocol="live-unordered")
def serve_before_all_came() -> Iterable[Change]:
    return [_table({(target.TargetPhase.ABSENT, ReleaseReported): (target.TargetPhase.SERVING, target.serve)})]


@hole("the target decides that it owns what it has prepared when the connection is lost", "I1")
def lost_connection_serves() -> Iterable[Change]:
    def serve(receiver: Receiver, step: int) -> None:
        receiver._handle(ReleaseReported(step))

    return [(Receiver, "ask_outcome", serve)]


@hole(
    "the target drops what it has prepared when the connection is lost, and the origin has forgotten it",
    "I2 I3 I4 I5 I6",
)
def lost_connection_drops() -> Iterable[Change]:
    release = OriginEffects.release

    def drop(receiver: Receiver, step: int) -> None:
        receiver._handle(AbortReported(step))

    def and_forget(effects: OriginEffects, step: int, units: Units) -> None:
        release(effects, step, units)
        _forget_all(effects, units)

    return [(Receiver, "ask_outcome", drop), (OriginEffects, "release", and_forget)]


@hole("a target takes a step that it has served for a new one", "I1 I2 I3 I5 I6")
def served_is_taken_in_again() -> Iterable[Change]:
    return [(Ownership, "served", lambda *_: False)]


@hole("a target takes part in a second hand-over of a unit before the first is resolved", "I1 I2 I4 I5 I6")
def two_handovers_at_once() -> Iterable[Change]:
    def accept(effects: TargetEffects, units: Units, *_: Any) -> Units:
        handover, free = effects._handover, (Stand.AWAY, Stand.EXPECTED, Stand.PREPARED)
        units = Units.of(*(unit for unit in units if handover.shared.ownership.share(unit).stand in free))
        handover.add_accepted(units)
        return units

    return [(TargetEffects, "accept", accept)]


@hole("state that was shipped again is queued behind `released`, and taken after `serve`", "I1 I2 I4 I6")
def state_after_serve() -> Iterable[Change]:
    def in_queue(effects: OriginEffects, step: int, queued: Queued) -> None:
        effects.handover.queue.put(queued)

    missing, shipped = target.TargetPhase.MISSING, origin.Phase.SHIPPED
    asked_again = _table({(missing, ReleaseReported): (missing, target.answer_missing)})
    shipped_again = _protocols({(shipped, Missing): (shipped, origin.ship_and_tell)})
    takes = (target.Target, "takes", lambda *_: True)
    return [(OriginEffects, "_put_behind_slices", in_queue), takes, asked_again, shipped_again]


@hole(
    "a target that has fired the timers of a batch takes keys whose timers have not fired in it",
    "I2 I4 I6",
    protocol="live-unordered",
)
def timers_do_not_wait() -> Iterable[Change]:
    return [(mover_module, "with_timers", lambda protocol: protocol)]


@hole("copies that never became a host's own are left where a restart finds them", "I1 I2 I4 I6")
def copies_outlive_a_restart() -> Iterable[Change]:
    return [(MigrationService, "_drop_copies", nothing)]


@hole("initial rows that come while their keys move are not copied", "I2 I4")
def initial_rows_stay() -> Iterable[Change]:
    return [(KeyWatcher, "changed", nothing), (Forwarder, "changed", nothing)]


# -- single keys -----------------------------------------------------------------------------------------------------


@hole("a key that comes back to its group while the group is copied is taken for one of the group", "I1 I2 I4 I6")
def key_comes_back_into_a_copy() -> Iterable[Change]:
    return [(Ownership, "begin_move", nothing)]


@hole(
    "a target goes on taking a key for apart that has gone back to its group before the group came",
    "I1 I2 I4 I6",
)
def key_stays_apart() -> Iterable[Change]:
    return [(Ownership, "rejoin", lambda *_: False)]


# -- durability ------------------------------------------------------------------------------------------------------


@hole("a host answers, and lets tasks end, before the work is in its changelog", "I2 I3 I4 I5 I6")
def answer_before_durable() -> Iterable[Change]:
    init = LaneExchange.__init__

    def unwritten(exchange: LaneExchange, *given: Any) -> None:
        init(exchange, *given)
        exchange._log = cast(Any, UnwrittenLog(exchange._log))

    return [(LaneExchange, "__init__", unwritten)]


@hole(
    "a router goes on with later rows of a lane when earlier ones were lost with a machine, until the lane ends",
    "I2 I3",
)
def lost_work_is_noticed_late() -> Iterable[Change]:
    check = LaneExchange._check_survived

    def at_the_end_only(exchange: LaneExchange, shared: Any, lane: messages.OpenLane, answered: Any) -> None:
        if answered is not lane.answered:
            check(exchange, shared, lane, answered)

    return [(LaneExchange, "_check_survived", at_the_end_only)]


@hole("a chunk counts in memory, its entry in the ledger does not fit on the disk, and its rows come again", "I2 I4")
def chunk_is_applied_again() -> Iterable[Change]:
    make_room, record = Ledger.make_room, Ledger.record

    def with_room(ledger: Ledger, lane: str, entry: Entry) -> None:
        make_room(ledger)
        record(ledger, lane, entry)

    later = [(Ledger, "make_room", nothing), (Ledger, "record", with_room)]
    return [*later, (DurableChanges, "uncertain", lambda _, error: error)]


# -- lost hosts ------------------------------------------------------------------------------------------------------


@hole("an heir that has prepared relies on being told by the driver", "I6")
def heirs_wait_to_be_told() -> Iterable[Change]:
    ask = Receiver.ask_outcome

    def but_not_for_a_will(receiver: Receiver, step: int) -> None:
        if not receiver.id.startswith("will-"):
            ask(receiver, step)

    return [(Receiver, "ask_outcome", but_not_for_a_will)]


@hole("the will is written before all heirs have prepared", "I1 I2 I4 I5 I6")
def will_before_all_prepared() -> Iterable[Change]:
    return [(rescue, "_prepared", lambda *_: messages.TakeoverReport("prepared"))]


@hole("others take over from a host whose changelog does not have all of its operators yet", "I6")
def takeover_of_a_part() -> Iterable[Change]:
    unsettled = rescue.LostHost.unsettled
    return [(rescue.LostHost, "unsettled", lambda lost_host, _: unsettled(lost_host, ()))]


@hole("a step that was released to a host that is lost for good is neither taken back nor forgotten", "I6")
def lost_target_is_waited_for() -> Iterable[Change]:
    return [(Mover, "_look_for_will", nothing)]


# -- a batch that comes again ----------------------------------------------------------------------------------------


@hole("a later run's batch is answered from what an earlier run recorded, though it is cut otherwise", "I2 I3 I4 I6")
def batch_is_not_reverted() -> Iterable[Change]:
    return [(Batches, "revert", nothing)]


@hole("rows are forgotten with their batch, though Spark's log does not name it yet", "I2 I3 I4 I6")
def rows_go_with_their_batch() -> Iterable[Change]:
    return [(Ledger, "next_batch", Ledger.clear)]


@hole("a commit counts for rows of the run before, whose batches were cut otherwise", "I2 I3 I4 I6")
def commit_of_another_run() -> Iterable[Change]:
    return [(Ledger, "next_run", nothing)]


@hole(
    "rows that change places within a run go to hosts that have not seen their numbers, and are applied again",
    "I2 I3 I4",
)
def rows_change_places() -> Iterable[Change]:
    return [(LaneRequests, "_check_sent", nothing)]


@hole("a host that inherits keys does not hear that their batch must not be committed", "I2 I3 I4")
def refusal_is_not_inherited() -> Iterable[Change]:
    prepare = TargetEffects.prepare

    def unaware(effects: TargetEffects, number: int, units: Units) -> None:
        step = effects._handover.step(number)
        assert step.end is not None, "only a step that has arrived is prepared"
        step.end = replace(step.end, mark={**step.end.mark, "spoiled": ""})
        prepare(effects, number, units)

    return [(TargetEffects, "prepare", unaware)]


@hole("a router hears that a batch must not be committed, but the host forgets it with a crash", "I2 I3 I4")
def refusal_before_durable() -> Iterable[Change]:
    return [(LaneExchange, "serve", LaneExchange._serve)]


@hole("a target whose disk is full tells the origin, from memory, that it has served a step", "I4 I6")
def served_from_memory() -> Iterable[Change]:
    def in_memory(receiver: Receiver, epochs: Any) -> bool:
        ownership = receiver._shared.instance.ownership
        return ownership is not None and ownership.served(epochs)

    return [(Receiver, "_served", in_memory)]


@hole("a host that is taken for lost, and goes on, tells its heirs that its keys stay with it", "I4 I6")
def fenced_host_answers() -> Iterable[Change]:
    return [(MigrationService, "report_outcome", MigrationService._outcome)]


@hole("initial state that is given again, cut otherwise, is added to what an earlier job has brought", "I2 I4")
def initial_state_is_taken_up_twice() -> Iterable[Change]:
    return [(Batches, "begin_initial", nothing)]


# -- lanes by key ----------------------------------------------------------------------------------------------------


@hole("a target that has fired a lane takes keys that arrive later for keys that it had when the lane fired", "I2 I4")
def arrivals_have_fired() -> Iterable[Change]:
    return [(FiredLanes, "arrived", lambda fired_lanes, *_: fired_lanes)]


@hole("a router does not ask the host to which keys have left before their timers had fired", "I2 I4")
def keys_leave_unfired() -> Iterable[Change]:
    def without_targets(request: FireRequest, answer: messages.TimersFired) -> None:
        del answer
        request.answered = True

    return [(FireRequest, "answer", without_targets)]


@hole(
    "a host that starts again does not know which lanes have fired: timers set by timers fire in the same batch", "I2"
)
def fired_lanes_are_not_recovered() -> Iterable[Change]:
    restore = BatchInProgress.restore

    def without_lanes(batch: BatchInProgress, mark: Any, spec: Any) -> None:
        restore(batch, mark, spec)
        batch.fired_lanes = FiredLanes()

    return [(BatchInProgress, "restore", without_lanes)]


@hole(
    "a host fires a lane while one of its keys is between two owners, and the target takes that key for fired", "I2 I4"
)
def lanes_fire_between_owners() -> Iterable[Change]:
    return [(Memory, "between_owners", False)]


@hole("every host takes its own clock for the time of the batch, and a key that moves has another time", "I2 I4")
def batch_has_several_times() -> Iterable[Change]:
    return [(Batches, "set_time", lambda *_: False)]

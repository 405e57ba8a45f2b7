"""The queue of requests to a running flock: each is planned, waits for conflicting requests, and runs in its own thread.

Requests for different keys run at the same time. A request that has waited is planned again, because the tables have changed
meanwhile. Hosts join before keys move, and leave after.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from godwit.control import planner
from godwit.control.migration_report import MoveProgress
from godwit.control.moves import Move, group_count, record
from godwit.control.reservations import Reservation
from godwit.errors import Bug, DefinitionError, GodwitError, HostUnavailable, MoveConflict, NotDeterministic
from godwit.model.units import Units
from godwit.spark.change.migration_handle import Migration, show
from godwit.spark.change.move_options import RESTART, CheckedOptions, MoveOptions, checked_options
from godwit.spark.change.request_plans import Plan, RequestPlanner
from godwit.spark.change.run_moves import MoveRunner, run_side_by_side
from godwit.spark.hosts.flock_parts import FlockParts
from godwit.spark.results.migration_summary import MigrationSummary

STANDBY = "standby"
MOVES_SHOWN = 4
_log = logging.getLogger("godwit.moves")


MakePlan = Callable[[], Plan]


@dataclass(slots=True)
class QueuedRequest:
    """A request from the call until its end. `reservation`: what no other request may change meanwhile."""

    migration: Migration
    make_plan: MakePlan
    reservation: Reservation

    def current_reservation(self) -> Reservation:
        """What the request reserves now: a standby reserves only what has not been handed over yet."""
        if not self.migration.standing:
            return self.reservation
        return Reservation.of([progress.move for progress in self.migration.moves if not progress.over])


class RequestQueue:
    def __init__(self, parts: FlockParts, runner: MoveRunner, incarnation: str) -> None:
        self._tables = parts.tables
        self._members = parts.members
        self._history = parts.history
        self._runner = runner
        self._planner = RequestPlanner(parts.tables, parts.members, runner, self._copies)
        self._incarnation = incarnation[:4]
        self._turn = threading.Condition()
        self._requests: list[QueuedRequest] = []
        self._ends = 0
        self._running = 0
        self._next = 0

    # -- kinds of requests -------------------------------------------------------------------------------------------

    def scale(self, hosts: Any, given: MoveOptions) -> Migration:
        if not isinstance(hosts, int) or isinstance(hosts, bool) or hosts < 1:
            raise DefinitionError(f"hosts={hosts!r} is not allowed", todo="Give a number from 1 up")
        options = self._without_standby(given, "scale")
        return self._submit("scale", lambda: self._planner.scaled(hosts), options, hosts=hosts)

    def arrange(self, hosts: int, warm: int, given: MoveOptions) -> Migration:
        """As `scale`, but `hosts` counts hosts that own something; `warm` empty hosts stay started beside them."""
        options = self._without_standby(given, "scale")
        return self._submit("scale", lambda: self._planner.arranged(hosts, warm), options, hosts=hosts)

    def warm(self, count: int, given: MoveOptions) -> Migration:
        """Start or stop empty hosts until there are so many."""
        options = checked_options(given)
        return self._submit("warm", lambda: self._planner.warmed(count), options, warm=count)

    def drain(self, host: Any, given: MoveOptions) -> Migration:
        options = checked_options(given)
        make_plan = self._planner.handed_over_from if options.protocol == STANDBY else self._planner.without
        return self._submit("drain", lambda: make_plan(host), options, host=host)

    def move(self, operator: str, units: Units, to: Any, given: MoveOptions) -> Migration:
        options = checked_options(given)

        def make_plan() -> Plan:
            moves = self._planner.moves(operator, units, to)
            return self._planner.handed_over(moves) if options.protocol == STANDBY else Plan(moves)

        return self._submit("move", make_plan, options, operator=operator, to=to)

    def rebalance(self, operator: str, given: MoveOptions) -> Migration:
        options = self._without_standby(given, "rebalance")
        return self._submit("rebalance", lambda: self._planner.rebalanced(operator), options, operator=operator)

    def standby(self, operator: str, units: Units | None, to: Any, given: MoveOptions) -> Migration:
        if "protocol" in given and given["protocol"] != STANDBY:
            raise DefinitionError(
                f"flock.standby uses protocol 'standby', not {given['protocol']!r}", todo="Leave protocol= out"
            )
        options = checked_options({**given, "protocol": STANDBY})
        return self._submit(
            "standby", lambda: self._planner.copied(operator, units, to), options, operator=operator, to=to
        )

    def _without_standby(self, given: MoveOptions, kind: str) -> CheckedOptions:
        options = checked_options(given)
        if options.protocol == STANDBY:
            raise DefinitionError(
                f"{kind} chooses the targets itself, and protocol='standby' needs copies on the target",
                todo="Use another protocol; or flock.move or flock.drain with protocol='standby'",
            )
        return options

    def _copies(self) -> list[tuple[Migration, MoveProgress]]:
        """The copies of all standbys, also those that are being made, or made again after a loss."""
        with self._turn:
            standbys = [request.migration for request in self._requests if request.migration.kind == "standby"]
        return [(standby, progress) for standby in standbys for progress in standby.moves if not progress.over]

    def copies_of(self, host: str) -> dict[str, dict[str, Units]]:
        """The complete copies of units of this host, by operator and by the host that has the copy."""
        copies: dict[str, dict[str, Units]] = {}
        for _, progress in self._copies():
            if progress.move.origin == host and progress.stood:
                share = copies.setdefault(progress.move.operator, {})
                share[progress.move.target] = share.get(progress.move.target, Units()) | progress.move.units
        return copies

    def taken_over(self, host: str) -> None:
        """Other hosts own the units of this lost host now: end the copies of its units, and the copies on it."""
        for migration, progress in self._copies():
            if progress.move.origin == host and progress.stood:
                progress.moved |= {unit: 0 for unit in progress.move.units if unit not in progress.moved}
            if progress.move.target == host:
                migration.abort(f"{host}, which had the copies, was lost")

    # -- the queue ---------------------------------------------------------------------------------------------------

    def _submit(self, kind: str, make_plan: MakePlan, options: CheckedOptions, **fields: Any) -> Migration:
        plan = make_plan()  # now, so that the caller gets the error
        with self._turn:
            self._next = max(self._next + 1, self._history.next_number())
            migration = Migration(f"m{self._next}-{self._incarnation}", kind, options, self._abort)
            request = QueuedRequest(migration, make_plan, self._reservation(plan, options))
            conflict = self._conflict(request, plan)
            fields |= {"operators": sorted({move.operator for move in plan.moves})} | options.for_history()
            self._history.add("requested", migration=migration.id, kind=kind, **fields)
            if conflict is not None and (options.on_conflict == "refuse" or conflict[0].standing):
                self._refuse(migration, *conflict)
            self._requests.append(request)
            self._running += 1
        _log.info("%s (%s) is requested: %s", migration.id, kind, _described(plan.moves))
        name = f"godwit-{kind}-{migration.id}"
        threading.Thread(target=self._run, args=(request,), name=name, daemon=True).start()
        if options.wait:
            show(migration, options.progress)
        return migration

    def _reservation(self, plan: Plan, options: CheckedOptions) -> Reservation:
        """What the plan changes. A restart stops everything, so it reserves everything."""
        if options.protocol != RESTART:
            return plan.reservation()
        everything = Units(frozenset(range(self._tables.group_count())))
        targets = frozenset(move.target for move in plan.moves)
        return Reservation(
            dict.fromkeys(self._tables.names(), everything), targets, frozenset(plan.leaving), roster=True
        )

    def _refuse(self, migration: Migration, other: Migration, reason: str) -> None:
        self._history.add("refused", migration=migration.id, by=other.id, reason=reason)
        raise MoveConflict(
            f"{other.id} ({other.kind}) is under way: {reason}",
            todo="Hand its copies over with protocol='standby', or abort() it"
            if other.standing
            else "Wait for it, abort() it, or pass on_conflict='queue'",
            migration=migration.id,
        )

    def _conflict(self, request: QueuedRequest, plan: Plan) -> tuple[Migration, str] | None:
        """The first earlier request that conflicts, and why. A standby whose copies the plan hands over does not conflict."""
        own = {id(standby) for standby, _ in plan.standing}
        for other in self._requests:
            if other is request:
                return None
            if id(other.migration) not in own:
                reason = request.reservation.conflict(other.current_reservation(), self._tables.group_count())
                if reason:
                    return other.migration, reason
        return None

    def _await_turn(self, request: QueuedRequest) -> Plan | None:
        """Wait until no earlier request conflicts, and return the plan of then; None if the request was aborted meanwhile."""
        while True:
            with self._turn:
                ends = self._ends
            plan = request.make_plan()
            with self._turn:
                request.reservation = self._reservation(plan, request.migration.options)
                while ends == self._ends and request.migration.aborting is None:
                    if self._conflict(request, plan) is None:
                        return plan
                    self._turn.wait()
                if request.migration.aborting is not None:
                    return None

    def _abort(self, migration: Migration, reason: str) -> None:
        with self._turn:
            self._turn.notify_all()
        for progress in list(migration.moves):
            if progress.attempt and not progress.over:
                self._runner.abort(progress, reason)

    @contextmanager
    def at_rest(self, operator: str, copies: bool = True) -> Iterator[None]:
        """No request moves state of the operator meanwhile; raises if one does now. `copies`: a standby may stand."""
        with self._turn:
            for queued in self._requests:
                standing = queued.migration.standing and copies
                if operator in queued.current_reservation().units and not standing:
                    raise DefinitionError(
                        f"{queued.migration.id} ({queued.migration.kind}) moves state of this operator now",
                        todo="Wait for it or abort() it, then define the operator again",
                        operator=operator,
                    )
            yield

    def keys_move(self) -> bool:
        """Whether a request that moves keys runs or waits. Complete copies of a standby do not count, nor do warm hosts."""
        with self._turn:
            return any(queued.migration.kind != "warm" and not queued.migration.standing for queued in self._requests)

    def wait_ended(self, timeout_s: float) -> bool:
        """Wait until all requests have ended. When a flock closes, its requests end by themselves."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._running, timeout_s)

    # -- one request -------------------------------------------------------------------------------------------------

    def _run(self, request: QueuedRequest) -> None:
        migration = request.migration
        outcome, reason, error = "failed", "", None
        try:
            plan = self._await_turn(request)
            if plan is not None:
                outcome, reason, error = self._carry_out(migration, plan)
            else:
                outcome, reason = "aborted", migration.aborting or ""
        except GodwitError as broken:
            reason, error = str(broken), broken
        except Exception as broken:  # noqa: BLE001 the thread that waits raises it
            error = Bug(f"{type(broken).__name__}: {broken}", migration=migration.id)
            reason = str(error)
        finally:
            self._end(request, outcome, reason, error)

    def _end(self, request: QueuedRequest, outcome: str, reason: str, error: GodwitError | None) -> None:
        migration = request.migration
        with self._turn:
            self._requests.remove(request)
            self._ends += 1
            self._turn.notify_all()
        report = migration.report()
        recorded = ("keys", "bytes", "groups_moved", "groups_minimum", "keys_moved_apart", "reconfiguration_s", "stall")
        try:
            figures = {name: value for name, value in report.to_dict().items() if name in recorded}
            operators = sorted({progress.move.operator for progress in migration.moves})
            self._history.add(
                "ended", migration=migration.id, operators=operators, outcome=outcome, reason=reason, **figures
            )
        finally:
            migration.end(outcome, reason, error)
            _log_end(migration, report, outcome, reason)
            with self._turn:
                self._running -= 1
                self._turn.notify_all()

    def _carry_out(self, migration: Migration, plan: Plan) -> tuple[str, str, GodwitError | None]:
        migration.minimum = plan.minimum if plan.minimum is not None else group_count(plan.moves)
        self._history.add(
            "began",
            migration=migration.id,
            moves=[record(move) for move in plan.moves],
            joining=plan.joining,
            leaving=plan.leaving,
        )
        if migration.options.protocol == RESTART:
            migration.enter("stopping")
            self._members.stop_all()
            migration.enter("starting")
            self._members.start_all()
        if plan.joining:
            migration.enter("joining")
            self._members.join(plan.joining)
        migration.enter("moving")
        self._move(migration, plan)
        left = sum(progress.left for progress in migration.moves)
        if plan.leaving and not left and migration.aborting is None:
            migration.enter("leaving")
            self._leave(migration, plan.leaving)
        if migration.options.restart is not None:
            migration.enter("restarting")
            migration.options.restart()
            migration.served_now()
        return self._outcome(migration, sum(progress.left for progress in migration.moves))

    def _move(self, migration: Migration, plan: Plan) -> None:
        if plan.standing:
            migration.moves.extend(progress for _, progress in plan.standing)
            jobs = [lambda pair=pair: self._runner.hand_over(*pair) for pair in plan.standing]
            run_side_by_side(jobs)
            return
        order = "sudden" if migration.options.protocol == RESTART else migration.options.order
        self._runner.run(migration, plan.moves, order, migration.options.protocol)

    def _leave(self, migration: Migration, leaving: list[str]) -> None:
        """Repeat until the hosts are empty: keys routed apart move after their groups, and new operators may exist since."""
        others = [host for host in self._members.hosts() if host not in leaving]
        staying = [host for host in others if self._tables.owned(host)] or others  # a warm host stays empty
        protocol = "pause" if migration.options.protocol == STANDBY else migration.options.protocol
        order = migration.options.order
        while not self._members.leave(leaving):
            tables = {name: self._tables.table(name) for name in self._tables.names()}
            moves = [move for name, table in tables.items() for move in planner.spread(name, table, staying)]
            moves = moves or [m for name, table in tables.items() for m in planner.keys_home(name, table, leaving)]
            self._runner.run(migration, moves, order, protocol)
            if migration.aborting is not None or any(progress.left for progress in migration.moves):
                return

    def _outcome(self, migration: Migration, left: int) -> tuple[str, str, GodwitError | None]:
        if migration.aborting is not None and left:
            return "aborted", migration.aborting, None
        if not left:
            return "done", "", None
        reason = next(progress.reason for progress in migration.moves if progress.left)
        kind = NotDeterministic if NotDeterministic.code in reason else HostUnavailable
        error = kind(
            f"{left} units were not moved: {reason or 'no reason was given'}",
            todo="Look at flock.history(), and request the move again",
            migration=migration.id,
        )
        return "incomplete", reason, error


def _described(moves: Sequence[Move]) -> str:
    """The moves of a plan in one line: 'speed: 512 groups from host-0 to host-2'."""
    parts = [
        f"{move.operator}: {_counted(move.units)} from {move.origin} to {move.target}" for move in moves[:MOVES_SHOWN]
    ]
    more = [f"and {len(moves) - MOVES_SHOWN} more moves"] if len(moves) > MOVES_SHOWN else []
    return "; ".join([*parts, *more]) or "no keys have to move"


def _counted(units: Units) -> str:
    counts = ((len(units.groups), "groups"), (len(units.keys), "single keys"))
    return " and ".join(f"{count} {what}" for count, what in counts if count)


def _log_end(migration: Migration, report: MigrationSummary, outcome: str, reason: str) -> None:
    """An end that the user may have to do something about is a WARNING."""
    level = logging.WARNING if outcome in ("failed", "incomplete") else logging.INFO
    text = "%s (%s) is %s after %.1f s: %d keys and %d bytes moved%s"
    figures = (report.reconfiguration_s, report.keys, report.bytes)
    _log.log(level, text, migration.id, migration.kind, outcome, *figures, f"; {reason}" if reason else "")

"""Requests to a flock that runs: planned, put in line, and carried out with hosts that join before and leave after.

One thread per request. Requests that touch other keys run side by side; the rest wait for their turn, and are planned anew when
it comes, because the tables have changed by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from godwit.control import planner
from godwit.control.claims import Claim
from godwit.control.migration_report import MoveProgress
from godwit.control.moves import group_count, record
from godwit.errors import Bug, DefinitionError, GodwitError, HostUnavailable, NotDeterministic
from godwit.model.units import Units
from godwit.spark.change.migration_handle import Migration, show
from godwit.spark.change.move_options import RESTART, CheckedOptions, MoveOptions, checked_options
from godwit.spark.change.request_plans import Plan, RequestPlanner
from godwit.spark.change.run_moves import MoveRunner, run_side_by_side
from godwit.spark.checkpoint.history import History
from godwit.spark.hosts.membership import Membership
from godwit.spark.hosts.owner_tables import OwnerTables

STANDBY = "standby"


Planned = Callable[[], Plan]


@dataclass(slots=True)
class QueuedRequest:
    """A request in line, from the call until it has ended."""

    migration: Migration
    planned: Planned
    claim: Claim

    def holds(self) -> Claim:
        """A standby holds only what has not been handed over yet."""
        if not self.migration.standing:
            return self.claim
        return Claim.of([course.move for course in self.migration.courses if not course.over])


class RequestQueue:
    def __init__(
        self, owners: OwnerTables, members: Membership, carrier: MoveRunner, history: History, incarnation: str
    ) -> None:
        self._owners = owners
        self._members = members
        self._carrier = carrier
        self._history = history
        self._plans = RequestPlanner(owners, members, carrier, self._copies)
        self._incarnation = incarnation[:4]
        self._turn = threading.Condition()
        self._line: list[QueuedRequest] = []
        self._ends = 0
        self._running = 0
        self._next = 0

    # -- what can be asked for ---------------------------------------------------------------------------------------

    def scale(self, hosts: Any, given: MoveOptions) -> Migration:
        if not isinstance(hosts, int) or isinstance(hosts, bool) or hosts < 1:
            raise DefinitionError(f"a flock cannot have {hosts!r} hosts", todo="Give a number from 1 up")
        options = self._piecewise(given, "scale")
        return self._submit("scale", lambda: self._plans.scaled(hosts), options, hosts=hosts)

    def arrange(self, hosts: int, warm: int, given: MoveOptions) -> Migration:
        """As `scale`, for hosts that own something; so many more stay, or are taken, that are started and empty."""
        options = self._piecewise(given, "scale")
        return self._submit("scale", lambda: self._plans.arranged(hosts, warm), options, hosts=hosts)

    def warm(self, count: int, given: MoveOptions) -> Migration:
        """Have so many hosts that are started and own nothing."""
        options = checked_options(given)
        return self._submit("warm", lambda: self._plans.warmed(count), options, warm=count)

    def drain(self, host: Any, given: MoveOptions) -> Migration:
        options = checked_options(given)
        planned = self._plans.handed_over_from if options.protocol == STANDBY else self._plans.without
        return self._submit("drain", lambda: planned(host), options, host=host)

    def move(self, operator: str, units: Units, to: Any, given: MoveOptions) -> Migration:
        options = checked_options(given)

        def planned() -> Plan:
            moves = self._plans.moves(operator, units, to)
            return self._plans.handed_over(moves) if options.protocol == STANDBY else Plan(moves)

        return self._submit("move", planned, options, operator=operator, to=to)

    def rebalance(self, operator: str, given: MoveOptions) -> Migration:
        options = self._piecewise(given, "rebalance")
        return self._submit("rebalance", lambda: self._plans.rebalanced(operator), options, operator=operator)

    def standby(self, operator: str, units: Units | None, to: Any, given: MoveOptions) -> Migration:
        if "protocol" in given and given["protocol"] != STANDBY:
            raise DefinitionError(
                f"a standby is kept by protocol 'standby', not {given['protocol']!r}", todo="Leave protocol= out"
            )
        options = checked_options({**given, "protocol": STANDBY})
        return self._submit(
            "standby", lambda: self._plans.copied(operator, units, to), options, operator=operator, to=to
        )

    def _piecewise(self, given: MoveOptions, kind: str) -> CheckedOptions:
        options = checked_options(given)
        if options.protocol == STANDBY:
            raise DefinitionError(
                f"{kind} decides itself where keys go, and copies are only where you have asked for them",
                todo="Use move or drain with protocol='standby', or another protocol",
            )
        return options

    def _copies(self) -> list[tuple[Migration, MoveProgress]]:
        """Those that stand, and those that are to stand: what was lost is being made again."""
        with self._turn:
            kept = [request.migration for request in self._line if request.migration.kind == "standby"]
        return [(one, course) for one in kept for course in one.courses if not course.over]

    def copies_of(self, host: str) -> dict[str, dict[str, Units]]:
        """Of what this host owns, copies that stand: by operator and by the host that has them."""
        found: dict[str, dict[str, Units]] = {}
        for _, course in self._copies():
            if course.move.origin == host and course.stood:
                share = found.setdefault(course.move.operator, {})
                share[course.move.target] = share.get(course.move.target, Units()) | course.move.units
        return found

    def taken_over(self, host: str) -> None:
        """What this host had has other owners: there is nothing left to copy from it, and no copy left on it."""
        for migration, course in self._copies():
            if course.move.origin == host and course.stood:
                course.moved |= {unit: 0 for unit in course.move.units if unit not in course.moved}
            if course.move.target == host:
                migration.abort(f"{host}, which had the copies, was lost")

    # -- the line ----------------------------------------------------------------------------------------------------

    def _submit(self, kind: str, planned: Planned, options: CheckedOptions, **asked: Any) -> Migration:
        plan = planned()  # now, so that what is wrong is told to the caller
        with self._turn:
            self._next = max(self._next + 1, self._history.next_number())
            migration = Migration(f"m{self._next}-{self._incarnation}", kind, options, self._abort)
            request = QueuedRequest(migration, planned, self._claim(plan, options))
            against = self._against(request, plan)
            asked |= {"operators": sorted({move.operator for move in plan.moves})} | options.for_history()
            self._history.add("requested", migration=migration.id, kind=kind, **asked)
            if against is not None and (options.on_conflict == "refuse" or against[0].standing):
                self._refuse(migration, *against)
            self._line.append(request)
            self._running += 1
        name = f"godwit-{kind}-{migration.id}"
        threading.Thread(target=self._run, args=(request,), name=name, daemon=True).start()
        if options.wait:
            show(migration, options.progress)
        return migration

    def _claim(self, plan: Plan, options: CheckedOptions) -> Claim:
        """A restart takes everything down, so nothing else goes on beside it."""
        if options.protocol != RESTART:
            return plan.claim()
        everything = Units(frozenset(range(self._owners.group_count())))
        targets = frozenset(move.target for move in plan.moves)
        return Claim(dict.fromkeys(self._owners.names(), everything), targets, frozenset(plan.leaving), roster=True)

    def _refuse(self, migration: Migration, other: Migration, reason: str) -> None:
        self._history.add("refused", migration=migration.id, by=other.id, reason=reason)
        raise DefinitionError(
            f"{other.id} ({other.kind}) is under way: {reason}",
            todo="Hand over with protocol='standby', or abort() it"
            if other.standing
            else "Wait for it, abort() it, or pass on_conflict='queue'",
            migration=migration.id,
        )

    def _against(self, request: QueuedRequest, plan: Plan) -> tuple[Migration, str] | None:
        """The first request before this one that it cannot run beside. The copies that are handed over are not in the way."""
        own = {id(standby) for standby, _ in plan.standing}
        for other in self._line:
            if other is request:
                return None
            if id(other.migration) not in own:
                reason = request.claim.conflict(other.holds(), self._owners.group_count())
                if reason:
                    return other.migration, reason
        return None

    def _await_turn(self, request: QueuedRequest) -> Plan | None:
        """The plan as of now, when nothing before it is in the way any more; None if it was aborted in line."""
        while True:
            with self._turn:
                ends = self._ends
            plan = request.planned()
            with self._turn:
                request.claim = self._claim(plan, request.migration.options)
                while ends == self._ends and request.migration.aborting is None:
                    if self._against(request, plan) is None:
                        return plan
                    self._turn.wait()
                if request.migration.aborting is not None:
                    return None

    def _abort(self, migration: Migration, reason: str) -> None:
        with self._turn:
            self._turn.notify_all()
        for course in list(migration.courses):
            if course.attempt and not course.over:
                self._carrier.abort(course, reason)

    def keys_move(self) -> bool:
        """Whether keys move, or are about to; copies that stand do not, nor does a host that joins to be warm."""
        with self._turn:
            return any(one.migration.kind != "warm" and not one.migration.standing for one in self._line)

    def wait_ended(self, timeout_s: float) -> bool:
        """Until nothing is in line; for a flock that closes, whose requests end by themselves."""
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
        except Exception as broken:  # noqa: BLE001 whoever waits must hear of it
            error = Bug(f"{type(broken).__name__}: {broken}", migration=migration.id)
            reason = str(error)
        finally:
            self._end(request, outcome, reason, error)

    def _end(self, request: QueuedRequest, outcome: str, reason: str, error: GodwitError | None) -> None:
        migration = request.migration
        with self._turn:
            self._line.remove(request)
            self._ends += 1
            self._turn.notify_all()
        seen = migration.report()
        kept = ("keys", "bytes", "groups_moved", "groups_minimum", "keys_moved_apart", "reconfiguration_s", "stall")
        try:
            told = {name: seen[name] for name in kept}
            operators = sorted({course.move.operator for course in migration.courses})
            self._history.add(
                "ended", migration=migration.id, operators=operators, outcome=outcome, reason=reason, **told
            )
        finally:
            migration.end(outcome, reason, error)
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
        left = sum(course.left for course in migration.courses)
        if plan.leaving and not left and migration.aborting is None:
            migration.enter("leaving")
            self._leave(migration, plan.leaving)
        if migration.options.restart is not None:
            migration.enter("restarting")
            migration.options.restart()
            migration.served_now()
        return self._outcome(migration, sum(course.left for course in migration.courses))

    def _move(self, migration: Migration, plan: Plan) -> None:
        if plan.standing:
            migration.courses.extend(course for _, course in plan.standing)
            jobs = [lambda pair=pair: self._carrier.hand_over(*pair) for pair in plan.standing]
            run_side_by_side(jobs)
            return
        order = "sudden" if migration.options.protocol == RESTART else migration.options.order
        self._carrier.carry(migration, plan.moves, order, migration.options.protocol)

    def _leave(self, migration: Migration, leaving: list[str]) -> None:
        """Again until they are empty: keys routed apart follow their groups, and an operator may have been defined since."""
        others = [host for host in self._members.hosts() if host not in leaving]
        staying = [host for host in others if self._owners.owned(host)] or others  # one that is kept warm stays empty
        protocol = "pause" if migration.options.protocol == STANDBY else migration.options.protocol
        order = migration.options.order
        while not self._members.leave(leaving):
            tables = {name: self._owners.table(name) for name in self._owners.names()}
            moves = [move for name, table in tables.items() for move in planner.spread(name, table, staying)]
            moves = moves or [m for name, table in tables.items() for m in planner.keys_home(name, table, leaving)]
            self._carrier.carry(migration, moves, order, protocol)
            if migration.aborting is not None or any(course.left for course in migration.courses):
                return

    def _outcome(self, migration: Migration, left: int) -> tuple[str, str, GodwitError | None]:
        if migration.aborting is not None and left:
            return "aborted", migration.aborting, None
        if not left:
            return "done", "", None
        reason = next(course.reason for course in migration.courses if course.left)
        kind = NotDeterministic if NotDeterministic.code in reason else HostUnavailable
        error = kind(
            f"{left} units stayed where they were: {reason or 'no reason was given'}",
            todo="Look at flock.history(), and ask again",
            migration=migration.id,
        )
        return "incomplete", reason, error

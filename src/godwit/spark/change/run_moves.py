"""Carries out moves: asks each origin to begin, follows it to its end, and tries again what came back.

What has moved is decided by the two hosts and by nobody else. An origin that has restarted knows nothing of a move: then what
both hosts own tells what became of it. A host that is away is waited for; no time-out decides anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from godwit.control import step_order
from godwit.control import table_from_hosts as recovery
from godwit.control.migration_report import MoveProgress
from godwit.control.moves import Move, spans
from godwit.control.planner import Measured
from godwit.errors import GodwitError, HostUnavailable
from godwit.migration import BUILT_IN, PROTOCOLS
from godwit.model.ownership import Stand
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.spark.change.migration_handle import Migration
from godwit.spark.change.move_options import RESTART
from godwit.spark.hosts.flock_parts import FlockParts
from godwit.transport import typed

TRIES = 3
ANSWER_WAIT_S = 2.0  # how long an origin may keep a question before it answers that nothing is new
ASK_GAP_S = 0.02  # an origin has news with every step; so often is enough for a person
LOST = ("", "the target was lost")  # reasons that a second try may mend


class MoveRunner:
    """`has_code` tells whether hosts have an operator's processor, without which rows cannot be replayed."""

    def __init__(self, parts: FlockParts, has_code: Callable[[str], bool]) -> None:
        self._hosts = parts.hosts
        self._tables = parts.tables
        self._history = parts.history
        self._has_code = has_code

    def run(self, migration: Migration, moves: Sequence[Move], order: str, protocol: str) -> None:
        """All moves, round by round. Moves that come to nothing are told in their courses, errors are raised."""
        courses = {id(move): MoveProgress(move) for move in moves}
        migration.courses.extend(courses.values())
        # A standby does not end, so no move can wait for another one.
        stands = protocol in PROTOCOLS and PROTOCOLS[protocol].until_asked
        for together in [moves] if stands else step_order.rounds(order, moves):
            if migration.aborting is None:
                run_side_by_side([self._job(migration, courses[id(move)], order, protocol) for move in together])

    def _job(self, migration: Migration, course: MoveProgress, order: str, protocol: str) -> Callable[[], None]:
        return lambda: self._run(migration, course, order, self._protocol(protocol, course.move.operator))

    def _protocol(self, asked: str, operator: str) -> str:
        """State of an operator that nobody has defined since the flock was opened can only be shipped."""
        if asked == RESTART:
            return "pause"
        return "pause" if PROTOCOLS[asked].deterministic and not self._has_code(operator) else asked

    # -- one move ----------------------------------------------------------------------------------------------------

    def _run(self, migration: Migration, course: MoveProgress, order: str, protocol: str) -> None:
        tries = 0
        try:
            while course.left and migration.aborting is None and tries < TRIES:
                again = self._try(migration, course, order, protocol)
                tries = 1 if course.stood else tries + 1  # copies that stood for a while and were lost are made again
                if not again:
                    break
        finally:
            course.over = True
            course.phase = "stayed" if course.left else "moved"

    def _try(self, migration: Migration, course: MoveProgress, order: str, protocol: str) -> bool:
        """Whether another try may do better."""
        move, before = course.move, dict(course.moved)
        left = Units.of(*(unit for unit in move.units if unit not in before))
        course.attempt, course.stood = migration.next_move(), False
        course.tries += 1
        began_s = time.monotonic()
        self._begin(migration, course, order, protocol, left)
        answer = self._follow(migration, course, PROTOCOLS[protocol].until_asked)
        if course.left:
            self._learn(course, self._settle(course, left))
        course.reason = "the origin restarted" if answer is None else answer.reason
        course.try_ended()
        if answer is not None and course.phases:
            migration.served_at(began_s + float(course.phases[-1][1]) / 1000)
        self._note(migration, course, before)
        return bool(course.left) and (answer is None or course.reason in LOST)

    def _begin(self, migration: Migration, course: MoveProgress, order: str, protocol: str, left: Units) -> None:
        move, options = course.move, migration.options
        size = step_order.step_units(order, protocol, options.step_units)
        rates = self._rates(move) if order == "hot-first" else None
        try:
            self._hosts.ask_now(
                move.origin,
                messages.StartMigration(
                    course.attempt,
                    move.operator,
                    move.target,
                    protocol,
                    tuple(step_order.steps(order, left, size, rates)),
                    code=_code(protocol),
                    **options.for_host(),
                ),
            )
        except HostUnavailable:
            return  # it has begun or it has not: it is asked next, as soon as it is back
        if migration.aborting is not None:
            self.abort(course, migration.aborting)

    def _follow(self, migration: Migration, course: MoveProgress, kept: bool) -> messages.MigrationReport | None:
        """Until the origin says that it has ended; None if it knows nothing of it any more."""
        while True:
            try:
                answer = self._hosts.ask(course.move.origin, messages.ReportMigration(course.attempt, ANSWER_WAIT_S))
            except HostUnavailable:
                if course.left:
                    raise
                return None  # it was lost, and its copies have taken over
            if answer.state == "unknown":
                return None
            migration.heard(course, typed.to_fields(answer))
            self._tables.moved(course.move.operator, course.moved, course.move.target)
            if answer.state == "ended":
                waits = {"target_waits": self._waits(course.move, answer.began_ms)}
                migration.heard(course, typed.to_fields(answer) | waits)
                return answer
            if kept and _stands(answer):
                course.stood = True
                migration.stands()
            self._hosts.closing.wait(ASK_GAP_S)

    def _waits(self, move: Move, since_ms: float) -> list[list[float]]:
        """How long rows have waited at the target since then. A target that is away takes what it knew with it."""
        try:
            return self._hosts.ask_now(move.target, messages.ReportWaits(move.operator, since_ms)).waits
        except HostUnavailable:
            return []

    def _settle(self, course: MoveProgress, left: Units) -> dict[Unit, int]:
        """What has moved, by the word of both hosts, once they agree."""
        move = course.move
        while True:
            origin = self._tables.ask(move.origin, move.operator)
            try:
                target = self._tables.ask(move.target, move.operator)
            except HostUnavailable:
                if origin is None or any(origin.share(unit).stand is not Stand.MINE for unit in left):
                    raise
                return {}  # it was lost for good, and had got nothing yet
            if origin is None or target is None:
                return {}
            moved = recovery.settled(left, origin, target)
            if moved is not None:
                return moved
            self._hosts.closing.wait(ASK_GAP_S)

    def _learn(self, course: MoveProgress, moved: dict[Unit, int]) -> None:
        course.moved |= moved
        self._tables.moved(course.move.operator, course.moved, course.move.target)

    def _note(self, migration: Migration, course: MoveProgress, before: dict[Unit, int]) -> None:
        move = course.move
        fields: dict[str, Any] = {
            "migration": migration.id,
            "move": course.attempt,
            "operator": move.operator,
            "origin": move.origin,
            "target": move.target,
        }
        new = Units.of(*(unit for unit in course.moved if unit not in before))
        if new:
            self._history.add("moved", **fields, groups=spans(new.groups), keys=sorted(new.keys))
        if course.left:
            self._history.add("stayed", **fields, units=course.left, reason=course.reason)

    # -- asked from outside ------------------------------------------------------------------------------------------

    def abort(self, course: MoveProgress, reason: str) -> None:
        """Best effort: an origin that is away drops the move by itself when it starts again."""
        try:
            self._hosts.ask_now(course.move.origin, messages.AbortMigration(course.attempt, reason or "aborted"))
        except GodwitError:
            return

    def hand_over(self, standby: Migration, course: MoveProgress) -> None:
        """Let a copy that stands take over, and wait for it; one that was lost just now is made again first."""
        asked = ""
        while (attempt := standby.wait_copy(course, asked)) is not None:
            self._hosts.ask(course.move.origin, messages.HandOverStandby(attempt))
            asked = attempt

    def measure(self, host: str, operator: str) -> Measured:
        answer = self._hosts.ask(host, messages.ReportLoad(operator))
        groups = {int(group): counts for group, counts in answer.groups.items()}
        return Measured(
            {group: float(rows) for group, (rows, _, _) in groups.items()},
            {group: float(size) for group, (_, _, size) in groups.items()},
            {int(route_hash): float(rows) for route_hash, rows, *_ in answer.hot},
        )

    def _rates(self, move: Move) -> dict[Unit, float]:
        measured = self.measure(move.origin, move.operator)
        groups = {Unit("group", group): rows for group, rows in measured.rows.items()}
        return groups | {Unit("key", key): rows for key, rows in measured.hot.items()}


def _code(protocol: str) -> bytes | None:
    """A protocol of the user's own travels with the request: hosts have only heard of those that come with the package."""
    if protocol in BUILT_IN:
        return None
    code: bytes = cloudpickle.dumps(PROTOCOLS[protocol])
    return code


def _stands(answer: messages.MigrationReport) -> bool:
    """Whether all of a kept move's copies follow."""
    return [name for name, _ in answer.phases].count("copied") >= answer.steps


def run_side_by_side(jobs: Sequence[Callable[[], None]]) -> None:
    """All jobs side by side, until all have ended; the first error is raised then. Threads do not outlive the driver."""
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 raised in the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), name="godwit-move", daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]

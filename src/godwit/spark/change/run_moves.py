"""Runs moves: requests each move from its origin, follows it to its end, and retries what was not moved.

The two hosts decide what has moved, and nobody else. An origin that has restarted knows nothing of the move: then the ownership
of both hosts tells the outcome. A host that is down is waited for; no timeout decides anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from godwit.control import step_order, table_from_hosts
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
ANSWER_WAIT_S = 2.0  # how long an origin waits for news before it answers
ASK_GAP_S = 0.02  # an origin has news with every step; a user needs fewer answers
LOST = ("", "the target was lost")  # reasons after which a second try may work


class MoveRunner:
    """`has_code`: whether hosts have the processor of an operator, without which rows cannot be replayed."""

    def __init__(self, parts: FlockParts, has_code: Callable[[str], bool]) -> None:
        self._hosts = parts.hosts
        self._tables = parts.tables
        self._history = parts.history
        self._has_code = has_code

    def run(self, migration: Migration, moves: Sequence[Move], order: str, protocol: str) -> None:
        """Run all moves, round by round. The progress of a move records why it failed; errors are raised."""
        progress_of = {id(move): MoveProgress(move) for move in moves}
        migration.moves.extend(progress_of.values())
        # A standby does not end, so no move can wait for another one.
        stands = protocol in PROTOCOLS and PROTOCOLS[protocol].until_asked
        for together in [moves] if stands else step_order.rounds(order, moves):
            if migration.aborting is None:
                run_side_by_side([self._job(migration, progress_of[id(move)], order, protocol) for move in together])

    def _job(self, migration: Migration, progress: MoveProgress, order: str, protocol: str) -> Callable[[], None]:
        return lambda: self._run(migration, progress, order, self._protocol(protocol, progress.move.operator))

    def _protocol(self, asked: str, operator: str) -> str:
        """The state of an operator that was not defined since the flock was opened can only be shipped, not replayed."""
        if asked == RESTART:
            return "pause"
        return "pause" if PROTOCOLS[asked].deterministic and not self._has_code(operator) else asked

    # -- one move ----------------------------------------------------------------------------------------------------

    def _run(self, migration: Migration, progress: MoveProgress, order: str, protocol: str) -> None:
        tries = 0
        try:
            while progress.left and migration.aborting is None and tries < TRIES:
                again = self._try(migration, progress, order, protocol)
                tries = (
                    1 if progress.stood else tries + 1
                )  # complete copies that were lost are made again, however often
                if not again:
                    break
        finally:
            progress.over = True
            progress.phase = "stayed" if progress.left else "moved"

    def _try(self, migration: Migration, progress: MoveProgress, order: str, protocol: str) -> bool:
        """Try to move what is left; whether another try may work."""
        move, before = progress.move, dict(progress.moved)
        left = Units.of(*(unit for unit in move.units if unit not in before))
        progress.attempt, progress.stood = migration.next_move(), False
        progress.tries += 1
        began_s = time.monotonic()
        self._begin(migration, progress, order, protocol, left)
        answer = self._follow(migration, progress, PROTOCOLS[protocol].until_asked)
        if progress.left:
            self._learn(progress, self._settle(progress, left))
        progress.reason = "the origin restarted" if answer is None else answer.reason
        progress.try_ended()
        if answer is not None and progress.phases:
            served = [at_ms for name, at_ms in progress.phases if name == "served"] or [progress.phases[-1][1]]
            migration.served_at(began_s + float(served[-1]) / 1000)
        self._note(migration, progress, before)
        return bool(progress.left) and (answer is None or progress.reason in LOST)

    def _begin(self, migration: Migration, progress: MoveProgress, order: str, protocol: str, left: Units) -> None:
        move, options = progress.move, migration.options
        size = step_order.step_units(order, protocol, options.step_units)
        rates = self._rates(move) if order == "hot-first" else None
        try:
            self._hosts.ask_now(
                move.origin,
                messages.StartMigration(
                    progress.attempt,
                    move.operator,
                    move.target,
                    protocol,
                    tuple(step_order.steps(order, left, size, rates)),
                    code=_code(protocol),
                    **options.for_host(),
                ),
            )
        except HostUnavailable:
            return  # the origin has begun or not: it is asked next, once it is back
        if migration.aborting is not None:
            self.abort(progress, migration.aborting)

    def _follow(
        self, migration: Migration, progress: MoveProgress, until_asked: bool
    ) -> messages.MigrationReport | None:
        """Follow the move until the origin reports its end; None if the origin does not know the move any more."""
        while True:
            try:
                answer = self._hosts.ask(
                    progress.move.origin, messages.ReportMigration(progress.attempt, ANSWER_WAIT_S)
                )
            except HostUnavailable:
                if progress.left:
                    raise
                return None  # the origin was lost, and its copies have become owners
            if answer.state == "unknown":
                return None
            migration.take_report(progress, typed.to_fields(answer))
            self._tables.moved(progress.move.operator, progress.moved, progress.move.target)
            if answer.state == "ended":
                waits = {"target_waits": self._waits(progress.move, answer.began_ms)}
                migration.take_report(progress, typed.to_fields(answer) | waits)
                return answer
            if until_asked and _stands(answer):
                progress.stood = True
                migration.stands()
            self._hosts.closing.wait(ASK_GAP_S)

    def _waits(self, move: Move, since_ms: float) -> list[list[float]]:
        """How long rows have waited at the target since then; nothing is known of a target that is down."""
        try:
            return self._hosts.ask_now(move.target, messages.ReportWaits(move.operator, since_ms)).waits
        except HostUnavailable:
            return []

    def _settle(self, progress: MoveProgress, left: Units) -> dict[Unit, int]:
        """The units that have moved, by the ownership of both hosts, once they agree."""
        move = progress.move
        while True:
            origin = self._tables.ask(move.origin, move.operator)
            try:
                target = self._tables.ask(move.target, move.operator)
            except HostUnavailable:
                if origin is None or any(origin.share(unit).stand is not Stand.MINE for unit in left):
                    raise
                return {}  # the target was lost for good, and owned nothing of the move yet
            if origin is None or target is None:
                return {}
            moved = table_from_hosts.settled(left, origin, target)
            if moved is not None:
                return moved
            self._hosts.closing.wait(ASK_GAP_S)

    def _learn(self, progress: MoveProgress, moved: dict[Unit, int]) -> None:
        progress.moved |= moved
        self._tables.moved(progress.move.operator, progress.moved, progress.move.target)

    def _note(self, migration: Migration, progress: MoveProgress, before: dict[Unit, int]) -> None:
        move = progress.move
        fields: dict[str, Any] = {
            "migration": migration.id,
            "move": progress.attempt,
            "operator": move.operator,
            "origin": move.origin,
            "target": move.target,
        }
        new = Units.of(*(unit for unit in progress.moved if unit not in before))
        if new:
            self._history.add("moved", **fields, groups=spans(new.groups), keys=sorted(new.keys))
        if progress.left:
            self._history.add("stayed", **fields, units=progress.left, reason=progress.reason)

    # -- called by requests ------------------------------------------------------------------------------------------

    def abort(self, progress: MoveProgress, reason: str) -> None:
        """Ask the origin to stop the move. An origin that is down drops the move when it starts again."""
        try:
            self._hosts.ask_now(progress.move.origin, messages.AbortMigration(progress.attempt, reason or "aborted"))
        except GodwitError:
            return

    def hand_over(self, standby: Migration, progress: MoveProgress) -> None:
        """Make the host of a complete copy the owner, and wait for it. A copy that was just lost is made again first."""
        asked = ""
        while (attempt := standby.wait_copy(progress, asked)) is not None:
            self._hosts.ask(progress.move.origin, messages.HandOverStandby(attempt))
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
    """The code of a protocol of the user, which travels with the request; hosts have the code of the built-in ones."""
    if protocol in BUILT_IN:
        return None
    code: bytes = cloudpickle.dumps(PROTOCOLS[protocol])
    return code


def _stands(answer: messages.MigrationReport) -> bool:
    """Whether all copies of a standby are complete."""
    return [name for name, _ in answer.phases].count("copied") >= answer.steps


def run_side_by_side(jobs: Sequence[Callable[[], None]]) -> None:
    """Run all jobs at the same time until all have ended, then raise the first error. The threads end with the driver."""
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

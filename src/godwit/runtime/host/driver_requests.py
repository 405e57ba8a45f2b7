"""How a host answers the driver's requests about its operators, its progress and its files; migrations are served elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from godwit.model.units import Units
from godwit.runtime.backup.keeper import BackupKeeper
from godwit.runtime.host.compaction import CompactionLoop
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.instance.instances import Instances
from godwit.runtime.messages import (
    AdoptMarks,
    CheckKeys,
    CheckTimers,
    ClearLetters,
    CopyLog,
    Define,
    GetMarks,
    HoldBatches,
    KeysKnown,
    LettersCleared,
    LogCopied,
    NoteCommitted,
    Ping,
    ProgressMarks,
    SetRoster,
    TidyBackups,
    TimersDue,
)
from godwit.state.changelog import Changelog
from godwit.state.log_copy import copy_log
from godwit.transport.typed import Done, Message, Request

Handlers = Mapping[type[Request[Any]], Callable[[Any], Message]]


@dataclass(frozen=True, slots=True)
class HostParts:
    """What a host consists of, once its changelog is open. `backup_keeper`: keeps the backups of other hosts."""

    log: Changelog
    instances: Instances
    lanes: LaneExchange
    compaction: CompactionLoop
    backup_keeper: BackupKeeper


class DriverRequests:
    def __init__(self, parts: HostParts, clock_ms: Callable[[], int]) -> None:
        self._log = parts.log
        self._instances = parts.instances
        self._lanes = parts.lanes
        self._compaction = parts.compaction
        self._backup_keeper = parts.backup_keeper
        self._clock_ms = clock_ms

    def handlers(self) -> Handlers:
        return {
            Define: self._define,
            CheckTimers: self._check_timers,
            CheckKeys: self._check_keys,
            ClearLetters: self._clear_letters,
            GetMarks: self._marks,
            AdoptMarks: self._adopt,
            SetRoster: self._set_roster,
            HoldBatches: self._hold,
            NoteCommitted: self._note_committed,
            CopyLog: self._copy,
            TidyBackups: self._tidy_backups,
            Ping: lambda _: Done(),
        }

    def _define(self, request: Define) -> Done:
        self._instances.define(request.operator)
        return Done()

    def _check_timers(self, request: CheckTimers) -> TimersDue:
        shared = self._instances.get(request.operator)
        if shared is None:
            return TimersDue(False)
        with shared.lock:
            return TimersDue(shared.instance.timers.due(request.at_ms))

    def _check_keys(self, request: CheckKeys) -> KeysKnown:
        shared = self._instances.get(request.operator)
        if shared is None:
            return KeysKnown((False,) * len(request.keys))
        with shared.lock:
            state, codec = shared.instance.state, shared.instance.key_codec
            return KeysKnown(tuple(state.contains(codec.unpack(key)) for key in request.keys))

    def _clear_letters(self, request: ClearLetters) -> LettersCleared:
        shared = self._instances.get(request.operator)
        if shared is None:
            return LettersCleared(0)
        with shared.lock:
            cleared = shared.instance.keys.clear_letters()
        self._log.sync(shared.lsn)
        return LettersCleared(cleared)

    def _marks(self, _: GetMarks) -> ProgressMarks:
        marks = {}
        for shared in self._instances:
            if not shared.instance.spec.ephemeral:
                with shared.lock:
                    marks[shared.instance.name], _part = shared.instance.mark_part()
        return ProgressMarks(marks)

    def _adopt(self, request: AdoptMarks) -> Done:
        for name, mark in request.marks.items():
            shared = self._instances.get(name)
            if shared is None:
                continue
            with shared.lock:
                if shared.instance.progress.query is None:
                    joins = {"fired": True, "unfired": Units().to_dict(), "joined": True, "spoiled": ""}
                    shared.instance.recovery.mark(mark | joins)
                    shared.instance.write([shared.instance.mark_part()])
            self._log.flush(shared.lsn)
        return Done()

    def _set_roster(self, request: SetRoster) -> Done:
        self._lanes.roster = request.hosts
        return Done()

    def _hold(self, request: HoldBatches) -> Done:
        for shared in self._instances:
            with shared.changed:
                shared.paused = request.hold
                shared.changed.notify_all()
        return Done()

    def _note_committed(self, request: NoteCommitted) -> Done:
        """Not written down: the next mark says which rows are left, and a host that forgets this keeps rows for longer."""
        shared = self._instances.get(request.operator)
        if shared is not None:
            with shared.lock:
                shared.instance.batches.know_committed(request.run, request.batch)
        return Done()

    def _copy(self, request: CopyLog) -> LogCopied:
        for shared in self._instances:
            self._log.sync(shared.lsn)
        with self._compaction.paused():
            return LogCopied(copy_log(self._log, Path(request.directory)))

    def _tidy_backups(self, _: TidyBackups) -> Done:
        self._backup_keeper.tidy()
        return Done()

"""The timers of every key.

Decides which timers are set and which are due. They stay in memory, because they have to be found by time.
It must not know what a timer is for, nor what time it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from godwit.state.changes import PUT, REMOVE, TIMERS, Changes, timer_ms, timer_sub
from godwit.state.deadlines import Deadlines
from godwit.state.keys import Key, KeyCodec
from godwit.state.spill import Spill
from godwit.state.table import InstalledKeys, InstallStage, Ops, Row, saved

TimerTimes: TypeAlias = tuple[int, ...]

_TIMER_BYTES: Final = 150
_STALE_MIN: Final = 1_000  # below this many removed timers a clean-up is not worth its while


class TimerTable:
    """Sorted expiry times by key."""

    def __init__(self, key_codec: KeyCodec) -> None:
        self.var = TIMERS
        self._key_codec = key_codec
        self._base: dict[Key, TimerTimes] = {}
        self._stage: dict[Key, dict[int, bool]] = {}  # expiry -> set or not
        self._undo: dict[Key, TimerTimes] = {}
        self._deadlines: Deadlines[Key] = Deadlines()
        self._timer_count = 0

    @property
    def count(self) -> int:
        return len(self._base)

    @property
    def bytes_estimate(self) -> int:
        return self._timer_count * _TIMER_BYTES

    @property
    def staged(self) -> bool:
        return bool(self._stage)

    def contains(self, key: Key) -> bool:
        return key in self._base

    def each_key(self) -> Iterator[Key]:
        return iter(self._base)

    def key_list(self) -> list[Key]:
        return list(self._base)

    def put(self, key: Key, expiry_ms: int) -> None:
        self._stage.setdefault(key, {})[expiry_ms] = True

    def remove(self, key: Key, expiry_ms: int) -> None:
        self._stage.setdefault(key, {})[expiry_ms] = False

    def get(self, key: Key) -> list[int]:
        times = self._base.get(key, ())
        staged = self._stage.get(key)
        return sorted(_with_staged(times, staged)) if staged else list(times)

    def clear_many(self, keys: Iterable[Key]) -> None:
        for key in keys:
            times = self._base.get(key, ())
            if times or key in self._stage:  # most keys have no timers
                self._stage[key] = dict.fromkeys(times, False)

    def stage_rows(self, ops: Ops, keys: Sequence[Key], subs: pa.Array[Any], values: pa.Array[Any]) -> None:
        for op, key, sub in zip(ops.tolist(), keys, subs.to_pylist(), strict=True):
            if sub is None:
                self.clear_many([key])
            else:
                self._stage.setdefault(key, {})[timer_ms(sub)] = op == PUT

    def expire(self, now_ms: int) -> None:
        """A timer stays until it is removed, however late it is."""

    def prepare(self, changes: Changes) -> InstallStage:
        stage = self._stage
        had = {key: self._base.get(key, ()) for key in stage}
        have = {key: tuple(sorted(_with_staged(had[key], staged))) for key, staged in stage.items()}
        puts: list[tuple[Key, int]] = []
        removes: list[tuple[Key, int]] = []
        for key, staged in stage.items():
            before = set(had[key])
            puts += [(key, at_ms) for at_ms, is_set in staged.items() if is_set and at_ms not in before]
            removes += [(key, at_ms) for at_ms, is_set in staged.items() if not is_set and at_ms in before]
        changes.add(TIMERS, REMOVE, [key for key, _ in removes], [timer_sub(at_ms) for _, at_ms in removes])
        changes.add(TIMERS, PUT, [key for key, _ in puts], [timer_sub(at_ms) for _, at_ms in puts])

        def install() -> InstalledKeys:
            self._stage = {}
            for key, times in had.items():
                self._undo.setdefault(key, times)
            self._base.update(have)
            moves = self._moves(had)
            self._timer_count += len(puts) - len(removes)
            self._schedule(puts)
            return moves

        return install

    def rollback(self) -> None:
        self._stage = {}

    def savepoint(self, keys: Sequence[Key]) -> Callable[[], None]:
        return saved(self._stage, keys, dict)

    def settle(self) -> None:
        self._undo = {}

    @property
    def undo_bytes(self) -> int:
        return len(self._undo) * _TIMER_BYTES

    def spill_undo(self, disk: Spill) -> None:
        """It stays in memory, as the timers do: it is no larger than they were."""

    def rows(self, committed: bool) -> Iterator[Row]:
        undo = self._undo if committed else {}
        for key, times in self._base.items():
            if key not in undo:
                yield from ((key, timer_sub(at_ms), None) for at_ms in times)
        for key, times in undo.items():
            yield from ((key, timer_sub(at_ms), None) for at_ms in times)

    def rows_of(self, keys: Sequence[Key], committed: bool = False) -> Iterator[Row]:
        undo = self._undo if committed else {}
        states = [(key, undo[key] if key in undo else self._base.get(key, ())) for key in keys]
        return ((key, timer_sub(at_ms), None) for key, times in states for at_ms in times)

    def touched(self) -> Collection[Key]:
        return self._undo

    def amend(self, cleared: Sequence[Key], rows: Iterable[Row]) -> None:
        self._undo.update(dict.fromkeys(cleared, ()))
        for key, sub, _ in rows:
            self._undo[key] = tuple(sorted((*self._undo[key], timer_ms(sub or b""))))

    def settle_keys(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._undo.pop(key, None)

    def due(self, until_ms: int) -> list[tuple[int, Key]]:
        """Installed timers that are due, by time and then by packed key, so that every run fires them alike."""
        timers = {(at_ms, key) for at_ms, key in self._deadlines.until(until_ms) if self._is_set(at_ms, key)}
        return sorted(timers, key=lambda timer: (timer[0], self._key_codec.pack(timer[1])))

    def next_ms(self) -> int | None:
        return self._deadlines.earliest(self._is_set)

    def _is_set(self, at_ms: int, key: Key) -> bool:
        return at_ms in self._base.get(key, ())

    def _moves(self, had: dict[Key, TimerTimes]) -> InstalledKeys:
        """Drop the keys that are left with no timer; returns which keys came and which went."""
        emptied = [key for key in had if not self._base[key]]
        for key in emptied:
            del self._base[key]
        added = [key for key, times in had.items() if not times and key in self._base]
        return InstalledKeys(added, [key for key in emptied if had[key]])

    def _schedule(self, timers: Iterable[tuple[Key, int]]) -> None:
        for key, at_ms in timers:
            self._deadlines.add(at_ms, key)
        if self._deadlines.count > 2 * self._timer_count + _STALE_MIN:
            self._deadlines.reset((at_ms, key) for key, times in self._base.items() for at_ms in times)


def _with_staged(times: TimerTimes, staged: dict[int, bool]) -> set[int]:
    left = {at_ms for at_ms in times if staged.get(at_ms, True)}
    return left.union(at_ms for at_ms, is_set in staged.items() if is_set)

"""Runs user code on rows or timers: on all at once, or on ever fewer where that tells which of them the processor cannot take.

Decides what is tried, what is set aside as a dead letter, and what is not tried any more because it has ended the process
before. Works on the stage only: whether and when that counts is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from godwit.errors import BadInput, DefinitionError, GodwitError, RowKillsHost
from godwit.runtime.instance.work import Chunk
from godwit.runtime.processor.black_box import Trail
from godwit.runtime.processor.dead_letters import row_letter, timer_letter
from godwit.runtime.processor.grouping import group_by_key
from godwit.runtime.processor.rows import Rows, Times
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.keys import Key, KeyCodec
from godwit.state.tables import KeyedState

Due = list[tuple[int, Key]]


@dataclass(frozen=True, slots=True)
class Calls:
    """What runs user code and gives tagged outputs; and how many rows it has found too late so far."""

    process: Callable[[Rows, Times], pa.RecordBatch]
    expire: Callable[[Due, Times], pa.RecordBatch]
    late_rows: Callable[[], int]


@dataclass(slots=True)
class Sifting:
    """One chunk of a lane, or the timers of one batch."""

    spec: OperatorSpec
    state: KeyedState
    key_codec: KeyCodec
    trail: Trail
    batch: int
    run: str
    lane: str
    times: Times
    calls: Calls
    outputs: list[pa.RecordBatch] = field(default_factory=list)
    late_rows: int = 0  # of those that were processed

    @property
    def _at(self) -> str:
        """Where rows have their numbers: a later run may cut the batch otherwise, so that they are those of other rows."""
        return f"{self.run} {self.lane}"

    # -- rows --------------------------------------------------------------------------------------------------------

    def rows(self, chunk: Chunk, grouped: Rows) -> None:
        """The stage is empty but for what is staged here."""
        first, last = int(chunk.rows[0]), int(chunk.rows[-1])
        if self.trail.suspected("rows", self.batch, self._at, first, last):
            for at in range(len(chunk)):
                self._one_row(_slice(chunk, at, at + 1))
            return
        try:
            self._try_rows(chunk, grouped)
        except GodwitError as error:
            if not self._may_set_aside(error):
                raise
            self.state.rollback()
            self._divide(chunk, grouped, error)

    def _divide(self, chunk: Chunk, grouped: Rows, error: GodwitError) -> None:
        """Find the rows that fail: those of the key that is named, else in the one half or the other. Keys keep their order."""
        if len(chunk) == 1:
            self._set_row_aside(chunk, error)
            return
        blamed = self._blamed(grouped, error)
        if blamed is not None:
            parts = [chunk.filter(~blamed), chunk.filter(blamed)]
        else:
            middle = len(chunk) // 2
            parts = [_slice(chunk, 0, middle), _slice(chunk, middle, len(chunk))]
        for part in parts:
            self._sift(part)

    def _sift(self, chunk: Chunk) -> None:
        grouped = group_by_key(chunk.batch, chunk.rows, self.key_codec)
        restore = self.state.savepoint(grouped.keys)
        try:
            self._try_rows(chunk, grouped)
        except GodwitError as error:
            if not self._may_set_aside(error):
                raise
            restore()
            self._divide(chunk, grouped, error)

    def _one_row(self, row: Chunk) -> None:
        """A row of those during which the process has ended before."""
        number = int(row.rows[0])
        grouped = group_by_key(row.batch, row.rows, self.key_codec)
        restore = self.state.savepoint(grouped.keys)
        try:
            if self.trail.kills("rows", self.batch, self._at, number, number):
                raise self._deadly("row", grouped.keys[0], row=number)
            self._try_rows(row, grouped, one=True)
        except GodwitError as error:
            if not self._may_set_aside(error):
                raise
            restore()
            self._set_row_aside(row, error)

    def _try_rows(self, chunk: Chunk, grouped: Rows, one: bool = False) -> None:
        late_before = self.calls.late_rows()
        self.trail.begin("rows", self.batch, self._at, int(chunk.rows[0]), int(chunk.rows[-1]), one)
        try:
            self.outputs.append(self.calls.process(grouped, self.times))
        finally:
            self.trail.end()
        self.late_rows += self.calls.late_rows() - late_before

    def _blamed(self, grouped: Rows, error: GodwitError) -> np.typing.NDArray[np.bool_] | None:
        """The rows of the key that the error names; None if it names none, or there is no other."""
        named = error.fields.get("key")
        if named is None or len(grouped.keys) < 2:
            return None
        for position, key in enumerate(grouped.keys):
            if self.key_codec.public(key) == named:
                blamed: np.typing.NDArray[np.bool_] = grouped.codes == position
                return blamed
        return None

    def _set_row_aside(self, row: Chunk, error: GodwitError) -> None:
        (key,) = group_by_key(row.batch, row.rows, self.key_codec).keys
        letter = row_letter(row.batch, self.batch, self.lane, int(row.rows[0]), error, self.times.processing_ms)
        self.state.letter_add(key, letter.pack())

    # -- timers ------------------------------------------------------------------------------------------------------

    def timers(self, timers: Due) -> None:
        if not self.trail.suspected("timers", self.batch, self.lane, 0, 0):
            restore = self.state.savepoint([key for _, key in timers])
            try:
                self._try_timers(timers)
                return
            except GodwitError as error:
                if not self._may_set_aside(error):
                    raise
                restore()
        for timer in timers:
            self._one_timer(timer)

    def _one_timer(self, timer: tuple[int, Key]) -> None:
        expiry_ms, key = timer
        restore = self.state.savepoint([key])
        route_hash = self.key_codec.route_hash(key)
        try:
            if self.trail.kills("timers", self.batch, self.lane, expiry_ms, route_hash):
                raise self._deadly("timer", key, timer_ms=expiry_ms)
            self._try_timers([timer], one=self.trail.suspected("timers", self.batch, self.lane, 0, 0))
        except GodwitError as error:
            if not self._may_set_aside(error):
                raise
            restore()
            self.state.timer_remove(key, expiry_ms)
            letter = timer_letter(expiry_ms, self.batch, self.lane, error, self.times.processing_ms)
            self.state.letter_add(key, letter.pack())

    def _try_timers(self, timers: Due, one: bool = False) -> None:
        expiry_ms, key = timers[0]
        self.trail.begin("timers", self.batch, self.lane, expiry_ms, self.key_codec.route_hash(key), one)
        try:
            self.outputs.append(self.calls.expire(timers, self.times))
        finally:
            self.trail.end()

    # -- both --------------------------------------------------------------------------------------------------------

    def _may_set_aside(self, error: GodwitError) -> bool:
        """Only what the processor or its input did wrong, and only where that is wanted."""
        return self.spec.dead_letters and isinstance(error, BadInput) and not isinstance(error, DefinitionError)

    def _deadly(self, what: str, key: Key, **where: int) -> RowKillsHost:
        return RowKillsHost(
            f"the host's process ended twice while the processor worked on this {what}, so it is not tried again",
            todo="Mend the processor or its input and open the flock again, or pass dead_letters=True to set it aside",
            operator=self.spec.name,
            key=self.key_codec.public(key),
            lane=self.lane,
            batch=self.batch,
            **where,
        )


def _slice(chunk: Chunk, start: int, end: int) -> Chunk:
    return Chunk(chunk.batch.slice(start, end - start), chunk.rows[start:end], chunk.hashes[start:end])

"""Runs user code on rows or timers. If it fails, isolates the rows or timers that it fails on and sets them aside.

Decides what is tried, what becomes a dead letter, and what is not tried any more because it has ended the process before. All
of it happens on the stage of the state: whether that counts is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from godwit.errors import BadInput, DefinitionError, GodwitError, RowKillsHost
from godwit.model.progress import BatchRef
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.durable.memory import Memory
from godwit.runtime.instance.user_code import DueTimers, UserCode
from godwit.runtime.processor.crash_markers import CrashMarker
from godwit.runtime.processor.dead_letters import row_letter, timer_letter
from godwit.runtime.processor.grouping import group_by_key
from godwit.runtime.processor.rows import Rows, Times
from godwit.state.keys import Key
from godwit.state.ledger import in_row_order, no_tagged_outputs


@dataclass(slots=True)
class IsolatingRun:
    """One chunk of a lane, or the timers of one batch."""

    _memory: Memory
    _code: UserCode
    _request: BatchRef
    _lane: str
    _times: Times
    _outputs: list[pa.RecordBatch] = field(default_factory=list)
    late_rows: int = 0  # processed rows that the processor found late

    @property
    def outputs(self) -> pa.RecordBatch:
        """All outputs, in row order, with the row column."""
        return in_row_order(self._outputs or [no_tagged_outputs(self._memory.spec.output_schema)])

    @property
    def _marker(self) -> CrashMarker:
        return self._code.marker

    @property
    def _lane_of_run(self) -> str:
        """The lane and the run: in a later run the same number may belong to another row."""
        return f"{self._request.run} {self._lane}"

    # -- rows --------------------------------------------------------------------------------------------------------

    def rows(self, chunk: Chunk, grouped: Rows) -> None:
        """Process the rows of a chunk. The stage must be empty before."""
        first, last = int(chunk.rows[0]), int(chunk.rows[-1])
        if self._marker.is_suspect("rows", self._request.batch, self._lane_of_run, first, last):
            for at in range(len(chunk)):
                self._one_row(_slice(chunk, at, at + 1))
            return
        try:
            self._try_rows(chunk, grouped)
        except GodwitError as error:
            if not self._may_set_aside(error):
                raise
            self._memory.state.rollback()
            self._divide(chunk, grouped, error)

    def _divide(self, chunk: Chunk, grouped: Rows, error: GodwitError) -> None:
        """Search for the rows that fail: split off the key that the error names, or else halve the chunk."""
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
            self._isolate(part)

    def _isolate(self, chunk: Chunk) -> None:
        grouped = group_by_key(chunk.batch, chunk.rows, self._memory.key_codec)
        restore = self._memory.state.savepoint(grouped.keys)
        try:
            self._try_rows(chunk, grouped)
        except GodwitError as error:
            if not self._may_set_aside(error):
                raise
            restore()
            self._divide(chunk, grouped, error)

    def _one_row(self, row: Chunk) -> None:
        """Process one of the rows during which the process has ended before."""
        number = int(row.rows[0])
        grouped = group_by_key(row.batch, row.rows, self._memory.key_codec)
        restore = self._memory.state.savepoint(grouped.keys)
        try:
            if self._marker.is_deadly("rows", self._request.batch, self._lane_of_run, number, number):
                raise self._deadly("row", grouped.keys[0], row=number)
            self._try_rows(row, grouped, one=True)
        except GodwitError as error:
            if not self._may_set_aside(error):
                raise
            restore()
            self._set_row_aside(row, error)

    def _try_rows(self, chunk: Chunk, grouped: Rows, one: bool = False) -> None:
        late_before = self._code.late_rows
        self._marker.begin("rows", self._request.batch, self._lane_of_run, int(chunk.rows[0]), int(chunk.rows[-1]), one)
        try:
            self._outputs.append(self._code.process(grouped, self._times))
        finally:
            self._marker.end()
        self.late_rows += self._code.late_rows - late_before

    def _blamed(self, grouped: Rows, error: GodwitError) -> np.typing.NDArray[np.bool_] | None:
        """The rows of the key that the error names; None if it names no key, or the chunk has only one key."""
        named = error.fields.get("key")
        if named is None or len(grouped.keys) < 2:
            return None
        for position, key in enumerate(grouped.keys):
            if self._memory.key_codec.public(key) == named:
                blamed: np.typing.NDArray[np.bool_] = grouped.codes == position
                return blamed
        return None

    def _set_row_aside(self, row: Chunk, error: GodwitError) -> None:
        (key,) = group_by_key(row.batch, row.rows, self._memory.key_codec).keys
        letter = row_letter(
            row.batch, self._request.batch, self._lane, int(row.rows[0]), error, self._times.processing_ms
        )
        self._memory.state.letter_add(key, letter.pack())

    # -- timers ------------------------------------------------------------------------------------------------------

    def timers(self, timers: DueTimers) -> None:
        if not self._marker.is_suspect("timers", self._request.batch, self._lane, 0, 0):
            restore = self._memory.state.savepoint([key for _, key in timers])
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
        restore = self._memory.state.savepoint([key])
        route_hash = self._memory.key_codec.route_hash(key)
        try:
            if self._marker.is_deadly("timers", self._request.batch, self._lane, expiry_ms, route_hash):
                raise self._deadly("timer", key, timer_ms=expiry_ms)
            self._try_timers([timer], one=self._marker.is_suspect("timers", self._request.batch, self._lane, 0, 0))
        except GodwitError as error:
            if not self._may_set_aside(error):
                raise
            restore()
            self._memory.state.timer_remove(key, expiry_ms)
            letter = timer_letter(expiry_ms, self._request.batch, self._lane, error, self._times.processing_ms)
            self._memory.state.letter_add(key, letter.pack())

    def _try_timers(self, timers: DueTimers, one: bool = False) -> None:
        expiry_ms, key = timers[0]
        self._marker.begin(
            "timers", self._request.batch, self._lane, expiry_ms, self._memory.key_codec.route_hash(key), one
        )
        try:
            self._outputs.append(self._code.expire(timers, self._times))
        finally:
            self._marker.end()

    # -- both --------------------------------------------------------------------------------------------------------

    def _may_set_aside(self, error: GodwitError) -> bool:
        """Only errors of the processor or of its input are set aside, and only if the operator has dead_letters=True."""
        return self._memory.spec.dead_letters and isinstance(error, BadInput) and not isinstance(error, DefinitionError)

    def _deadly(self, what: str, key: Key, **where: int) -> RowKillsHost:
        return RowKillsHost(
            f"the host's process ended twice while the processor worked on this {what}, so it is not tried again",
            todo="Correct the processor or its input and open the flock again, or pass dead_letters=True to set it aside",
            operator=self._memory.spec.name,
            key=self._memory.key_codec.public(key),
            lane=self._lane,
            batch=self._request.batch,
            **where,
        )


def _slice(chunk: Chunk, start: int, end: int) -> Chunk:
    return Chunk(chunk.batch.slice(start, end - start), chunk.rows[start:end], chunk.hashes[start:end])

"""The processor of one instance: attached, called on the stage of the state, closed.

Decides how outputs of user code look and what an error says about the row that user code was at. Whether a change of the stage
counts is decided elsewhere.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from godwit.errors import DefinitionError, GodwitError, ProcessorFailed
from godwit.runtime.durable.memory import Memory
from godwit.runtime.processor.crash_markers import CrashMarker, NoCrashMarker
from godwit.runtime.processor.rows import Adapter, Index, Outputs, Rows, Times
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.keys import Key
from godwit.state.ledger import ROW_FIELD, TIMER_ROW

Result = TypeVar("Result")
FRAMES_MAX = 8
_PACKAGE = Path(__file__).parents[2]
DueTimers = list[tuple[int, Key]]


class UserCode:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.adapter: Adapter | None = None
        self.marker: CrashMarker = NoCrashMarker()
        self.guard: Callable[[], AbstractContextManager[None]] = nullcontext  # the host watches user code through this

    def attach(self, spec: OperatorSpec, adapter: Adapter) -> None:
        """Give the instance its code, in place of the code that it has. If that fails, it has none."""
        before, self.adapter = self.adapter, None
        if before is not None:
            with suppress(Exception):  # code that is replaced cannot stop its successor
                before.close()
        self._memory.redefine(spec)
        adapter.open(self._memory.state)
        self.adapter = adapter

    def process(self, rows: Rows, times: Times) -> pa.RecordBatch:
        return self._call(lambda adapter: _tagged(adapter.process(rows, times)))

    def expire(self, timers: DueTimers, times: Times) -> pa.RecordBatch:
        rows = TIMER_ROW + np.array([expiry_ms for expiry_ms, _ in timers], np.int64)
        return self._call(lambda adapter: _tagged(adapter.expire(timers, times), rows))

    def initialise(self, rows: Rows, times: Times) -> None:
        self._call(lambda adapter: adapter.initialise(rows, times))

    @property
    def late_rows(self) -> int:
        """How many rows the processor has found too late so far: a window decides that by itself."""
        return getattr(self.adapter, "late_rows", 0)

    def _call(self, call: Callable[[Adapter], Result]) -> Result:
        spec, batch = self._memory.spec, self._memory.progress.batch
        if self.adapter is None:
            raise DefinitionError(
                "the operator has not been defined since this flock was opened",
                todo="Call flock.transformWithState (or process) for it before the query starts",
                operator=spec.name,
            )
        try:
            with self.guard():
                return call(self.adapter)
        except GodwitError as error:
            raise error.at(operator=spec.name, batch=batch) from error.__cause__
        except (Exception, SystemExit) as error:
            raise ProcessorFailed(
                f"the processor threw {type(error).__name__}: {error}",
                todo="The batch fails and state is as before; fix the processor or the row and start the query again",
                **self.describe(),
                trace=_trace_of_user_code(error),
            ) from error

    def describe(self) -> dict[str, Any]:
        """Where user code is, for errors about it."""
        key = None if self.adapter is None else self.adapter.current_key
        return {
            "operator": self._memory.spec.name,
            "key": None if key is None else self._memory.key_codec.public(key),
            "batch": self._memory.progress.batch,
        }

    def current_call(self) -> int:
        """Another number for each call of user code within a request."""
        return 0 if self.adapter is None else self.adapter.current_call

    def close(self) -> None:
        if self.adapter is not None:
            self.adapter.close()
            self.adapter = None


def _trace_of_user_code(error: BaseException) -> str:
    """The frames outside of this package, and the exception."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not Path(frame.filename).is_relative_to(_PACKAGE)]
    shown = traceback.format_list((users or frames)[-FRAMES_MAX:])
    return "".join([*shown, *traceback.format_exception_only(error)]).rstrip()


def _tagged(outputs: Outputs, rows: Index | None = None) -> pa.RecordBatch:
    """Outputs with the row column in front, in row order. `rows`: the rows that the indices mean, if not themselves."""
    batch, row = outputs.batch, outputs.row_index if rows is None else rows[outputs.row_index]
    if len(row) > 1 and (row[1:] < row[:-1]).any():
        order = np.argsort(row, kind="stable")
        batch, row = batch.take(order), row[order]
    tagged = batch.add_column(0, ROW_FIELD, pa.array(row, pa.int64()))
    return tagged.replace_schema_metadata(None) if tagged.schema.metadata else tagged

"""Calls the methods of an unchanged PySpark StatefulProcessor for a chunk: with Rows, or with pandas DataFrames.

Decides the order and the arguments of the calls: init once when an instance opens, then handleInputRows once per key and chunk
(its output is consumed before the next key), handleExpiredTimer once per timer, close at the end. An exception of user code
becomes an error with the key and the stack frames of the user. Must not know where chunks come from or where outputs go.

Spark calls init and close around every micro-batch of every partition, Godwit once in the life of an instance. A processor that
stores everything in its state, as PySpark requires, behaves the same.
"""

from __future__ import annotations

import pickle
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from godwit.errors import DefinitionError, GodwitError, OutputMismatch, ProcessorFailed
from godwit.runtime.processor.rows import Index, Outputs, Rows, Times
from godwit.spark.pyspark_api.call_settings import VALUE_BYTES_MAX, CallSettings
from godwit.spark.pyspark_api.handle import TIME_MODES, Handle, Scope
from godwit.spark.pyspark_api.user_inputs import Frames, in_zone, pandas_moments, python_rows, row_of_struct
from godwit.spark.pyspark_api.user_outputs import FrameSink, RowSink
from godwit.state import keyed_state
from godwit.state.converters import LOCAL
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key, KeyCodec, naive_datetime, process_zone
from godwit.state.nested_keys import is_nested
from godwit.state.variables import Variable

Sink: TypeAlias = RowSink | FrameSink
Inputs: TypeAlias = Callable[[int], Iterator[Any]]

_OWN_FOLDERS: Final = (str(Path(__file__).parent), str(Path(keyed_state.__file__).parent))
_MEND: Final = "The state is unchanged. Correct the processor, or the rows on which it fails, and start the query again"
_MEND_FIRST: Final = "Correct the processor: init and close also run on the driver, when the operator is defined"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DEFAULTS: Final = CallSettings()


@dataclass(frozen=True, slots=True)
class Declared:
    """The state variables that init of a processor declares, and the names of older ones that it removes."""

    variables: tuple[Variable, ...]
    removed: tuple[str, ...]


def describe(processor: StatefulProcessor, time_mode: str = "none") -> Declared:
    """The variables of a processor: init and close run on a copy of it, as Spark does on the driver."""
    if not isinstance(processor, StatefulProcessor):
        raise DefinitionError(f"a StatefulProcessor is expected, not {type(processor).__name__}")
    scope = Scope(checked_time_mode(time_mode), LOCAL, VALUE_BYTES_MAX, lambda key: key)
    handle = Handle(scope)
    copy: StatefulProcessor = pickle.loads(cloudpickle.dumps(processor))
    steps: dict[str, Callable[[], object]] = {"init": lambda: copy.init(handle), "close": copy.close}
    for name, call in steps.items():
        try:
            call()
        except GodwitError as error:
            raise error.at(trace=user_trace(error)) from error.__cause__
        except Exception as error:
            raise _failed(error, name, None, _MEND_FIRST) from error
        scope.declaring = False
    return Declared(handle.variables, handle.removed)


def checked_time_mode(time_mode: str) -> str:
    if time_mode.lower() not in TIME_MODES:
        raise DefinitionError(
            f"timeMode {time_mode!r} is not known", todo="Use 'none', 'processingTime' or 'eventTime'"
        )
    return time_mode.lower()


class _StatefulAdapter:
    """What both flavours share. Until `open` is called the adapter can be pickled."""

    def __init__(
        self,
        processor: StatefulProcessor,
        variables: Sequence[Variable],
        key_schema: pa.Schema,
        output_schema: pa.Schema,
        settings: CallSettings = _DEFAULTS,
    ) -> None:
        self.variables = tuple(variables)
        self.output_schema = output_schema
        self._processor = processor
        self._key_schema = key_schema
        self._settings = settings
        self._time_mode = checked_time_mode(settings.time_mode)
        self._tz = settings.tz
        self._scope: Scope | None = None

    # A flavour defines these four methods.

    def _shown(self, names: list[str], added: tuple[str, ...]) -> list[str]:
        """The columns of the rows that the processor gets, if keys were added to the columns of the input."""
        raise NotImplementedError

    def _sink(self) -> Sink:
        raise NotImplementedError

    def _inputs(self, batch: pa.RecordBatch, bounds: list[int]) -> Inputs:
        """A function that gives the input of the key at a position of a batch sorted by key; called in the order of keys."""
        raise NotImplementedError

    def _moment(self, micros: int, wall_clock: datetime) -> Any:
        """An instant in a key, in the form of this flavour."""
        raise NotImplementedError

    def open(self, state: KeyedState) -> None:
        # As in PySpark, a naive datetime in state is in the zone of the process, not of the session.
        scope = Scope(self._time_mode, LOCAL, self._settings.value_bytes_max, self._public())
        scope.state = state
        handle = Handle(scope, state.variables)
        self._run(scope, "init", lambda: self._processor.init(handle))
        handle.check_declared()
        scope.declaring = False
        self._scope = scope

    def process(self, rows: Rows, times: Times) -> Outputs:
        scope, public, sink = self._opened, self._opened.public, self._sink()
        timer_values, handle = self._timer_values(times), self._processor.handleInputRows
        inputs = self._inputs(*self._by_key(rows))

        def calls() -> None:
            for position, key in enumerate(rows.keys):
                scope.key = key
                scope.call = position
                sink.consume(handle(public(key), inputs(position), timer_values))

        self._run(scope, "handleInputRows", calls)
        return self._outputs(sink, rows.keys, rows.row_index[rows.last], times)

    def expire(self, timers: Sequence[tuple[int, Key]], times: Times) -> Outputs:
        scope, public, sink = self._opened, self._timer_key(), self._sink()
        timer_values, handle = self._timer_values(times), self._processor.handleExpiredTimer

        def calls() -> None:
            for position, (expiry_ms, key) in enumerate(timers):
                scope.key = key
                scope.call = position
                info = ExpiredTimerInfo(expiry_ms)
                sink.consume(handle(key=public(key), timerValues=timer_values, expiredTimerInfo=info))
                state, _ = scope.here("a timer")
                state.timer_remove(key, expiry_ms)

        self._run(scope, "handleExpiredTimer", calls)
        return self._outputs(sink, [key for _, key in timers], np.arange(len(timers), dtype=np.int64), times)

    def initialise(self, rows: Rows, times: Times) -> None:
        scope, public = self._opened, self._opened.public
        timer_values, handle = self._timer_values(times), self._processor.handleInitialState
        inputs = self._inputs(*self._by_key(rows))

        def calls() -> None:
            for position, key in enumerate(rows.keys):
                scope.key = key
                for initial in inputs(position):
                    scope.call += 1
                    handle(public(key), initial, timer_values)

        self._run(scope, "handleInitialState", calls)

    def close(self) -> None:
        if self._scope is not None:
            self._run(self._scope, "close", self._processor.close)
            self._scope = None

    @property
    def current_key(self) -> Key | None:
        return None if self._scope is None else self._scope.key

    @property
    def current_call(self) -> int:
        return -1 if self._scope is None else self._scope.call

    @property
    def _opened(self) -> Scope:
        if self._scope is None:
            raise DefinitionError("the adapter is not open", todo="Call open() first")
        return self._scope

    def _by_key(self, rows: Rows) -> tuple[pa.RecordBatch, list[int]]:
        names, added = rows.batch.schema.names, self._settings.added_keys
        batch = rows.batch.select(self._shown(names, added)) if added else rows.batch
        return in_zone(batch, self._tz).take(rows.order), rows.bounds.tolist()

    def _timer_values(self, times: Times) -> TimerValues:
        if self._time_mode == "none":
            return TimerValues(-1, -1)
        return TimerValues(times.processing_ms, times.watermark_ms)

    def _run(self, scope: Scope, name: str, calls: Callable[[], object]) -> None:
        try:
            calls()
        except GodwitError as error:
            raise error.at(key=scope.shown_key, trace=user_trace(error)) from error.__cause__
        except (Exception, SystemExit) as error:
            raise _failed(error, name, scope.shown_key) from error
        finally:
            scope.key = None
            scope.call = -1

    def _outputs(self, sink: Sink, keys: Sequence[Key], row_index: Index, times: Times) -> Outputs:
        try:
            batch = sink.finish()
            if self._settings.event_time_column and (self._time_mode == "eventtime" or times.late_ms > 0):
                sink.check_not_late(batch, self._settings.event_time_column, times.late_ms)
        except OutputMismatch as error:
            key = None if sink.failed_call is None else self._opened.public(keys[sink.failed_call])
            raise error.at(key=key) from error.__cause__
        return Outputs(batch, np.repeat(row_index, sink.counts))

    def _public(self) -> Callable[[Key], Key]:
        """A function that gives a key as Spark does to this flavour. Instants differ from the form of `KeyCodec`."""
        instants = {i for i, t in enumerate(self._key_schema.types) if self._shows(t)}
        public = KeyCodec(self._key_schema, self._tz).public
        if not instants:
            return public
        moment = self._moment
        return lambda key: tuple(
            [
                moment(stored, shown) if i in instants and stored is not None else shown
                for i, (stored, shown) in enumerate(zip(key, public(key), strict=True))
            ]
        )

    def _shows(self, kind: Any) -> bool:
        return pa.types.is_timestamp(kind) and kind.tz is not None

    def _timer_zone(self) -> tzinfo | None:
        """The zone of naive datetimes in the key of a timer."""
        return process_zone()

    def _timer_key(self) -> Callable[[Key], Any]:
        """A function that gives the key of a timer as Spark does: a Row out of state, in both flavours."""
        kinds, zone = list(self._key_schema.types), self._timer_zone()
        instants = {i for i, kind in enumerate(kinds) if pa.types.is_timestamp(kind) and kind.tz is not None}
        public = KeyCodec(self._key_schema, self._tz).public
        make = row_of_struct(pa.struct(list(self._key_schema)), zone)

        def row(key: Key) -> Any:
            values = enumerate(zip(key, public(key), strict=True))
            return make([naive_datetime(k, zone) if i in instants and k is not None else v for i, (k, v) in values])

        return row


class RowAdapter(_StatefulAdapter):
    """A processor for `transformWithState`: Rows in, Rows out."""

    def _shown(self, names: list[str], added: tuple[str, ...]) -> list[str]:
        return [*added, *(name for name in names if name not in added)]  # where Spark puts them

    def _sink(self) -> Sink:
        return RowSink(self.output_schema)

    def _inputs(self, batch: pa.RecordBatch, bounds: list[int]) -> Inputs:
        rows = python_rows(batch)
        left: Iterator[Any] = iter(())

        def of_next(key: int) -> Iterator[Any]:
            nonlocal left
            deque(left, maxlen=0)  # skip the rows that the processor did not read of the previous key
            left = islice(rows, bounds[key + 1] - bounds[key])
            return left

        return of_next

    def _moment(self, micros: int, wall_clock: datetime) -> Any:
        return (_EPOCH + timedelta(microseconds=micros)).astimezone(ZoneInfo(self._tz))


class PandasAdapter(_StatefulAdapter):
    """A processor for `transformWithStateInPandas`: DataFrames in, DataFrames out."""

    def _shown(self, names: list[str], added: tuple[str, ...]) -> list[str]:
        return [name for name in names if name not in added]

    def _sink(self) -> Sink:
        return FrameSink(self.output_schema, self._tz, self._settings.spark)

    def _inputs(self, batch: pa.RecordBatch, bounds: list[int]) -> Inputs:
        frames = Frames(batch, bounds, self._tz, self._settings.spark.int_or_na)
        rows_max = self._settings.spark.frame_rows(batch.nbytes, len(batch))
        return lambda key: frames.of_key(key, rows_max)

    def _shows(self, kind: Any) -> bool:
        return pa.types.is_timestamp(kind)

    def _moment(self, micros: int, wall_clock: datetime) -> Any:
        return pd.Timestamp(wall_clock)

    def _timer_zone(self) -> tzinfo | None:
        return ZoneInfo(self._tz)

    def _public(self) -> Callable[[Key], Key]:
        public = super()._public()
        if not any(map(is_nested, self._key_schema.types)):
            return public
        return lambda key: tuple(map(pandas_moments, public(key)))


def _failed(error: BaseException, name: str, key: Key | None, todo: str = _MEND) -> ProcessorFailed:
    message = f": {error}" if str(error) else ""
    return ProcessorFailed(
        f"{name} raised {type(error).__name__}{message}",
        todo=todo,
        key=key,
        exception=type(error).__name__,
        trace=user_trace(error),
    )


def user_trace(error: BaseException) -> str | None:
    """The traceback with the frames of user code only; None if there are none."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not f.filename.startswith(_OWN_FOLDERS)]
    if isinstance(error, GodwitError):
        return "".join(traceback.format_list(users)) or None
    return "".join([*traceback.format_list(users or frames), *traceback.format_exception_only(error)])

"""The processor that fills Spark's own state variables with state of a flock, in the first batch of a query.

Decides how stored values get through Spark's handle unchanged, and at which time the first batch runs: before all timers, so
that none is due, which would be lost with its output. Knows nothing of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from godwit.errors import CheckpointMismatch, DefinitionError
from godwit.runtime.processor.spec import TimeMode
from godwit.spark.porting.packed_state import unpacked
from godwit.state.codec import compile_codec
from godwit.state.converters import AWARE
from godwit.state.variables import Variable, VariableKind

# Processing time of the first batch: the year 1, the first that Spark can show.
FIRST_BATCH_MS: Final = -62_135_596_800_000
FIRST_WATERMARK_MS: Final = 0  # Spark has no earlier one
_TODO: Final = "Give the frame to godwit.continue_in_spark, and start the query with your own processor"


class Restoring(StatefulProcessor):
    """Declares the state of the user's processor and fills it with the rows of `initialState`; does nothing else.

    now_ms: when a time to live begins anew. by_instants: keys are shown with instants of pandas, where two may look alike.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        variables: Sequence[Variable],
        time_mode: TimeMode,
        now_ms: int,
        by_instants: bool = False,
    ) -> None:
        self._processor = processor
        self._variables = tuple(variables)
        self._time_mode = time_mode
        self._first_ms = FIRST_WATERMARK_MS if time_mode == "eventTime" else FIRST_BATCH_MS
        self._now_ms = now_ms
        self._by_instants = by_instants

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._keys: set[str] = set()
        caught = _Catching(handle, self._now_ms - FIRST_BATCH_MS)
        self._processor.init(caught)  # type: ignore[arg-type]  # it has all that the handle has
        self._targets = [_Target.of(variable, caught.states[variable.name]) for variable in self._variables]

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self._check_time(key, timerValues)
        rows = [initialState] if isinstance(initialState, Row) else initialState.itertuples(index=False, name=None)
        for row in rows:
            self._check_alone(key)
            variables, timers = unpacked(bytes(row[-1]))
            for target, stored in zip(self._targets, variables, strict=True):
                target.fill(stored)
            for at_ms in _not_due(timers, self._first_ms):
                self._handle.registerTimer(at_ms)

    def _check_time(self, key: Any, timerValues: Any) -> None:
        by_event = self._time_mode == "eventTime"
        now_ms = timerValues.getCurrentWatermarkInMs() if by_event else timerValues.getCurrentProcessingTimeInMs()
        if self._time_mode != "none" and now_ms != self._first_ms:
            raise DefinitionError(
                "this processor stores state in a batch of its own, in which no timer is due, and this is another batch",
                todo=_TODO,
                key=str(key),
            )

    def _check_alone(self, key: Any) -> None:
        """Every key has one row of state: a second row is of another key, and would replace the state of the first."""
        if not self._by_instants:
            return
        if repr(key) in self._keys:
            raise CheckpointMismatch(
                f"the flock has state of two keys that Spark takes for one with pandas: {key!r}",
                todo="Go on in Spark with a session in the time zone UTC, in which no hour comes twice",
                key=str(key),
            )
        self._keys.add(repr(key))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        raise DefinitionError(
            "this processor only stores state, and has got input rows, which would be lost",
            todo='Give transformWithState the input with .where("false"), and the frame to godwit.continue_in_spark',
            key=str(key),
        )

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        raise DefinitionError(
            "this processor only stores state, and a timer is due, whose output would be lost", todo=_TODO, key=str(key)
        )

    def close(self) -> None:
        self._processor.close()


def _not_due(timers: Sequence[int], at_ms: int) -> Iterator[int]:
    """The times of timers. Those that are due at `at_ms` come just behind it, in their order, each at a time of its own."""
    for timer_ms in sorted(timers):
        at_ms = max(timer_ms, at_ms + 1)
        yield at_ms


class _Catching:
    """Spark's handle, which remembers the state variables that it gives.

    longer_ms: how much longer their times to live are, since the first batch runs so long before its time.
    """

    def __init__(self, handle: StatefulProcessorHandle, longer_ms: int) -> None:
        self._handle = handle
        self._longer_ms = longer_ms
        self.states: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._catch(stateName, self._handle.getValueState(stateName, schema, self._longer(ttlDurationMs)))

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._catch(stateName, self._handle.getListState(stateName, schema, self._longer(ttlDurationMs)))

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        ttl_ms = self._longer(ttlDurationMs)
        return self._catch(stateName, self._handle.getMapState(stateName, userKeySchema, valueSchema, ttl_ms))

    def _longer(self, ttl_ms: int | None) -> int | None:
        return None if ttl_ms is None else ttl_ms + self._longer_ms

    def _catch(self, name: str, state: Any) -> Any:
        self.states[name] = state
        return state


@dataclass(frozen=True, slots=True)
class _Target:
    """A state variable of Spark, and how to read what the flock has stored of it."""

    state: Any
    kind: VariableKind
    value: Callable[[bytes], tuple[Any, ...]]
    map_key: Callable[[bytes], tuple[Any, ...]] | None

    @classmethod
    def of(cls, variable: Variable, state: Any) -> _Target:
        # Spark stores an instant that knows its zone as it is, and takes tuples for structs.
        value, map_key = (
            None if schema is None else compile_codec(schema, AWARE, lambda _: tuple).decode
            for schema in (variable.schema, variable.key_schema)
        )
        assert value is not None, "a variable has a schema"
        return cls(state, variable.kind, value, map_key)

    def fill(self, stored: Sequence[Any]) -> None:
        """Nothing is done where the key has nothing in this variable: Spark takes no empty list."""
        if self.map_key is not None:
            for sub, payload in stored:
                self.state.updateValue(self.map_key(sub), self.value(payload))
        elif stored and self.kind == "list":
            self.state.put([self.value(payload) for payload in stored])
        elif stored:
            self.state.update(self.value(stored[0]))

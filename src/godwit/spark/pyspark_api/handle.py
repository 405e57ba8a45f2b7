"""The handle and the state variables that Godwit gives to a PySpark processor in place of Spark's own.

Decides how each method of PySpark's StatefulProcessorHandle, ValueState, ListState and MapState reads and writes the staged
state of the current key, and which calls are refused, as in Spark. The classes are subclasses of PySpark's, so that type checks
in user code work. Must not know how rows reach the processor or where state is stored.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa
from pyspark.sql import types as sql
from pyspark.sql.streaming.stateful_processor import ListState, MapState, StatefulProcessorHandle, ValueState

from godwit.errors import DefinitionError, StateTooLarge, StateTypeError
from godwit.spark.pyspark_api.deleted_state import StateRefused, delete
from godwit.spark.pyspark_api.schemas import variable_schema
from godwit.spark.pyspark_api.user_inputs import row_maker
from godwit.state.codec import compile_codec
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key
from godwit.state.variables import Variable, VariableKind

Schema: TypeAlias = sql.StructType | str

TIME_MODES: Final = ("none", "processingtime", "eventtime")


class Scope:
    """The key whose state user code may use now; none while `key` is None."""

    __slots__ = ("call", "declaring", "key", "public", "state", "time_mode", "tz", "value_bytes_max")

    def __init__(self, time_mode: str, tz: str, value_bytes_max: int, public: Callable[[Key], Key]) -> None:
        self.key: Key | None = None
        self.call = -1  # the number of the running call of user code within the chunk
        self.declaring = True
        self.state: KeyedState | None = None
        self.time_mode = time_mode
        self.tz = tz
        self.value_bytes_max = value_bytes_max
        self.public = public

    def here(self, what: str) -> tuple[KeyedState, Key]:
        if self.key is None or self.state is None:
            raise DefinitionError(
                f"{what} was used outside of a call that has a key",
                todo="Use state and timers only in handleInputRows, handleExpiredTimer and handleInitialState",
            )
        return self.state, self.key

    @property
    def shown_key(self) -> Key | None:
        return None if self.key is None else self.public(self.key)


class _Fields:
    """Encodes and decodes one tuple of a variable: a value, an element of a list, or the key of a map entry."""

    __slots__ = ("_encode", "_name", "_scope", "_width", "decode")

    def __init__(self, scope: Scope, name: str, schema: pa.Schema) -> None:
        try:
            codec = compile_codec(schema, scope.tz, lambda names: row_maker(tuple(names)))
        except DefinitionError as error:
            raise error.at(variable=name) from None
        self._scope = scope
        self._name = name
        self._width = len(schema)
        self._encode = codec.encode
        self.decode = codec.decode

    def encode(self, values: Any) -> bytes:
        try:
            payload = self._encode(values if isinstance(values, (tuple, list)) else _as_tuple(values, self._width))
        except StateTypeError as error:
            raise error.at(variable=self._name, key=self._scope.shown_key) from None
        if len(payload) > self._scope.value_bytes_max:
            raise StateTooLarge(
                f"a state value has {len(payload)} bytes, which is over the limit of {self._scope.value_bytes_max}",
                variable=self._name,
                key=self._scope.shown_key,
                todo="Store less in one value (a list or map state has one per element), or raise the limit value_bytes_max",
            )
        return payload

    def encode_all(self, values: Any) -> list[bytes]:
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            what = f"a list of tuples is expected, not {type(values).__name__}"
        else:
            payloads = [self.encode(value) for value in values]
            if payloads:
                return payloads
            what = "a list state cannot be set to an empty list, as in Spark"
        todo = "Use clear() to empty a list state"
        raise StateTypeError(what, variable=self._name, key=self._scope.shown_key, todo=todo)


def _as_tuple(values: Any, width: int) -> tuple[Any, ...]:
    """Spark takes whatever can be iterated, even a string of one character for a single field. A dict gives only its keys."""
    if isinstance(values, Iterable) and not isinstance(values, Mapping):
        items = tuple(values)
        if len(items) == width or not isinstance(values, (str, bytes)):
            return items
    raise StateTypeError(
        f"a tuple is expected, not {type(values).__name__}",
        todo="Give one value for each field of the state variable's schema, in order",
    )


def _what(kind: VariableKind, name: str) -> str:
    return f"{kind} state {name!r}"


class _StateVariable:
    """What the three kinds of state share. PySpark's own constructors are not called: they need a socket to the JVM."""

    def __init__(self, scope: Scope, position: int, variable: Variable) -> None:
        self._scope = scope
        self._position = position
        self._what = _what(variable.kind, variable.name)
        self._fields = _Fields(scope, variable.name, variable.schema)


class KeyValueState(_StateVariable, ValueState):
    def exists(self) -> bool:
        state, key = self._scope.here(self._what)
        return state.value_get(self._position, key) is not None

    def get(self) -> tuple[Any, ...] | None:
        state, key = self._scope.here(self._what)
        payload = state.value_get(self._position, key)
        return None if payload is None else self._fields.decode(payload)

    def update(self, newValue: tuple[Any, ...]) -> None:
        state, key = self._scope.here(self._what)
        state.value_put(self._position, key, self._fields.encode(newValue))

    def clear(self) -> None:
        state, key = self._scope.here(self._what)
        state.value_clear(self._position, key)


class KeyListState(_StateVariable, ListState):
    def exists(self) -> bool:
        state, key = self._scope.here(self._what)
        return bool(state.list_get(self._position, key))

    def get(self) -> Iterator[tuple[Any, ...]]:
        state, key = self._scope.here(self._what)
        return map(self._fields.decode, state.list_get(self._position, key))

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        state, key = self._scope.here(self._what)
        state.list_put(self._position, key, self._fields.encode_all(newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        state, key = self._scope.here(self._what)
        state.list_append(self._position, key, [self._fields.encode(newState)])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        state, key = self._scope.here(self._what)
        state.list_append(self._position, key, self._fields.encode_all(newState))

    def clear(self) -> None:
        state, key = self._scope.here(self._what)
        state.list_clear(self._position, key)


class KeyMapState(_StateVariable, MapState):
    def __init__(self, scope: Scope, position: int, variable: Variable) -> None:
        super().__init__(scope, position, variable)
        self._keys = _Fields(scope, variable.name, cast(pa.Schema, variable.key_schema))

    def _items(self) -> Iterator[tuple[bytes, bytes]]:
        state, key = self._scope.here(self._what)
        return state.map_items(self._position, key)

    def exists(self) -> bool:
        state, key = self._scope.here(self._what)
        return state.map_exists(self._position, key)

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        state, at = self._scope.here(self._what)
        payload = state.map_get(self._position, at, self._keys.encode(key))
        return None if payload is None else self._fields.decode(payload)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        state, at = self._scope.here(self._what)
        return state.map_get(self._position, at, self._keys.encode(key)) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        state, at = self._scope.here(self._what)
        state.map_put(self._position, at, self._keys.encode(key), self._fields.encode(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return ((self._keys.decode(sub), self._fields.decode(payload)) for sub, payload in self._items())

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return (self._keys.decode(sub) for sub, _ in self._items())

    def values(self) -> Iterator[tuple[Any, ...]]:
        return (self._fields.decode(payload) for _, payload in self._items())

    def removeKey(self, key: tuple[Any, ...]) -> None:
        state, at = self._scope.here(self._what)
        state.map_remove(self._position, at, self._keys.encode(key))

    def clear(self) -> None:
        state, key = self._scope.here(self._what)
        state.map_clear(self._position, key)


_KINDS: Final[Mapping[VariableKind, type[_StateVariable]]] = {
    "value": KeyValueState,
    "list": KeyListState,
    "map": KeyMapState,
}


class Handle(StatefulProcessorHandle):
    """The handle that a processor's init gets.

    On the driver init declares the variables, and the handle records them (`variables`, `removed`). On a host `declared` has
    the variables of the definition, and init gets those.
    """

    def __init__(self, scope: Scope, declared: Iterable[Variable] | None = None) -> None:
        self._scope = scope
        self._declared = None if declared is None else {v.name: (i, v) for i, v in enumerate(declared)}
        self._made: dict[str, tuple[VariableKind, _StateVariable]] = {}
        self._variables: dict[str, Variable] = {}
        self._removed: dict[str, None] = {}

    @property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(self._variables.values())

    @property
    def removed(self) -> tuple[str, ...]:
        return tuple(self._removed)

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ValueState:
        return cast(ValueState, self._variable(stateName, "value", schema, None, ttlDurationMs))

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ListState:
        return cast(ListState, self._variable(stateName, "list", schema, None, ttlDurationMs))

    def getMapState(
        self, stateName: str, userKeySchema: Schema, valueSchema: Schema, ttlDurationMs: int | None = None
    ) -> MapState:
        return cast(MapState, self._variable(stateName, "map", valueSchema, userKeySchema, ttlDurationMs))

    def _variable(
        self, name: str, kind: VariableKind, schema: Schema, key_schema: Schema | None, ttl_ms: int | None
    ) -> _StateVariable:
        self._only_in_init(_what(kind, name))
        if name in self._made or name in self._removed:
            once = "removed by deleteIfExists and declared again" if name in self._removed else "declared twice"
            raise DefinitionError(
                f"state variable {name!r} is {once} in init", variable=name, todo="Give each variable a name of its own"
            )
        state = _KINDS[kind]
        if self._declared is None:
            variable = self._variables[name] = self._declare(name, kind, schema, key_schema, ttl_ms)
            made = state(self._scope, len(self._made), variable)
        elif name in self._declared and self._declared[name][1].kind == kind:
            made = state(self._scope, *self._declared[name])
        else:  # init deletes it, else `check_declared` fails
            made = state.__new__(state)
        self._made[name] = kind, made
        return made

    def check_declared(self) -> None:
        """On a host, after init: the variables that init declared and did not delete are those of the definition."""
        for name, (kind, _) in self._made.items():
            defined = (self._declared or {}).get(name)
            if name not in self._removed and (defined is None or defined[1].kind != kind):
                raise DefinitionError(
                    f"init declares the {_what(kind, name)} on this host, and did not declare it on the driver",
                    variable=name,
                    todo="Let init declare the same state variables wherever it runs",
                )

    def _declare(
        self, name: Any, kind: VariableKind, schema: Schema, key_schema: Schema | None, ttl_ms: int | None
    ) -> Variable:
        if not isinstance(name, str) or not name.strip() or name != name.strip() or name[0] == "$":
            todo = "Give a name that is not empty, has no space at its ends and does not begin with $"
            raise DefinitionError(f"{name!r} cannot be the name of a state variable", todo=todo)
        if ttl_ms and (ttl_ms < 0 or self._scope.time_mode != "processingtime"):
            raise DefinitionError(
                f"state variable {name!r} has a TTL of {ttl_ms} ms with timeMode {self._scope.time_mode!r}",
                variable=name,
                todo="Give a positive TTL, and timeMode 'processingTime', as Spark requires",
            )
        key_fields = None if key_schema is None else variable_schema(key_schema, name)
        return Variable(name, kind, variable_schema(schema, name), key_fields, ttl_ms or None)

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a variable that an earlier definition had, with its data, or that this init has declared."""
        self._only_in_init(f"deleteIfExists({stateName!r})")
        self._removed[stateName] = None
        self._variables.pop(stateName, None)
        if stateName in self._made:
            kind, made = self._made[stateName]
            delete(made, kind, _what(kind, stateName), lambda: self._scope.shown_key)

    def _only_in_init(self, what: str) -> None:
        if not self._scope.declaring:
            raise DefinitionError(f"{what} was called outside of init", todo="Declare state variables in init only")

    def _timers_here(self, call: str) -> tuple[KeyedState, Key]:
        if self._scope.time_mode == "none":
            raise StateRefused(
                f"{call} was called, and the operator has timeMode='none'",
                key=self._scope.shown_key,
                todo="Define the operator with timeMode 'processingTime' or 'eventTime'",
            )
        return self._scope.here(call)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        state, key = self._timers_here("registerTimer")
        state.timer_put(key, self._millis(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        state, key = self._timers_here("deleteTimer")
        state.timer_remove(key, self._millis(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        state, key = self._timers_here("listTimers")
        return iter(state.timer_list(key))

    def _millis(self, value: Any) -> int:
        try:
            millis = operator.index(value)
        except TypeError:
            millis = None
        if millis is None or not -(2**63) <= millis < 2**63:
            message = (
                f"the time of a timer must be a whole number of milliseconds, not {type(value).__name__} {value!r:.80}"
            )
            raise StateTypeError(message, key=self._scope.shown_key) from None
        return millis

"""The handle and the state behind it: PySpark's methods on one key's staged state, and what they refuse."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as sql
from pyspark.sql.streaming.stateful_processor import ListState, MapState, StatefulProcessorHandle, ValueState

from godwit.errors import DefinitionError, StateTooLarge, StateTypeError
from godwit.spark.pyspark_api.call_settings import VALUE_BYTES_MAX
from godwit.spark.pyspark_api.handle import Handle, Scope
from godwit.spark.pyspark_api.schemas import parse_ddl, variable_schema
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec

A, B = ("a",), ("b",)
KEYS = KeyCodec(pa.schema([("key", pa.string())]))


class World:
    """A processor's init, run on the driver and then on a host with empty state."""

    def __init__(
        self, init: Callable[[Handle], Any], time_mode: str = "none", value_bytes_max: int = VALUE_BYTES_MAX
    ) -> None:
        recording = Handle(Scope(time_mode, "UTC", value_bytes_max, lambda key: key))
        init(recording)
        self.variables = recording.variables
        self.removed = recording.removed
        self.scope = Scope(time_mode, "UTC", value_bytes_max, lambda key: key)
        self.state = self.scope.state = KeyedState(self.variables, KEYS)
        self.handle = Handle(self.scope, self.variables)
        self.made = init(self.handle)
        self.scope.declaring = False
        self.at(A)

    def at(self, key: tuple[Any, ...] | None) -> None:
        self.scope.key = key


def value(schema: Any = "n long", **options: Any) -> World:
    ttl = options.pop("ttl", None)
    return World(lambda handle: handle.getValueState("v", schema, ttl), **options)


def elements(**options: Any) -> World:
    ttl = options.pop("ttl", None)
    return World(lambda handle: handle.getListState("l", "n long", ttl), **options)


def entries(**options: Any) -> World:
    ttl = options.pop("ttl", None)
    return World(lambda handle: handle.getMapState("m", "k string", "n long", ttl), **options)


def test_user_code_that_checks_types_goes_on_working():
    assert isinstance(value().handle, StatefulProcessorHandle)
    assert isinstance(value().made, ValueState)
    assert isinstance(elements().made, ListState)
    assert isinstance(entries().made, MapState)


# --- value state


def test_value_is_none_until_it_is_set_and_after_it_is_cleared():
    state = value().made
    assert state.get() is None
    assert not state.exists()
    state.update((5,))
    assert state.get() == (5,)
    assert type(state.get()) is tuple
    assert state.exists()
    state.clear()
    assert state.get() is None
    state.clear()


def test_each_key_has_its_own_value():
    world = value()
    world.made.update((1,))
    world.at(B)
    assert world.made.get() is None
    world.made.update((2,))
    world.at(A)
    assert world.made.get() == (1,)


def test_a_value_of_nothing_but_nulls_exists():
    state = value().made
    state.update((None,))
    assert state.exists()
    assert state.get() == (None,)


@pytest.mark.parametrize(
    "given",
    [(7,), [7], Row(n=7), Row(7), np.array([7]), (np.int64(7),), pd.Series([7]), iter([7]), range(7, 8)],
    ids=lambda v: repr(v).partition(" object at")[0],
)
def test_whatever_can_be_iterated_is_taken_by_position_as_in_spark(given):
    state = value().made
    state.update(given)
    assert state.get() == (7,)


def test_a_string_of_one_character_is_a_tuple_of_one_as_in_spark():
    state = value("s string").made
    state.update("7")
    assert state.get() == ("7",)
    with pytest.raises(StateTypeError, match="a tuple is expected, not str"):
        state.update("77")


@pytest.mark.parametrize("given", [7, None, "7", "77", {"n": 7}, ("7",), (7, 8), (), (1.5,), (2**70,)], ids=repr)
def test_a_value_of_the_wrong_type_names_variable_and_key(given):
    world = value()
    with pytest.raises(StateTypeError) as caught:
        world.made.update(given)
    assert (caught.value.fields["variable"], caught.value.fields["key"]) == ("v", A)
    assert world.made.get() is None


def test_values_come_back_as_pyspark_gives_them():
    schema = "t timestamp, d date, m decimal(5,2), s struct<a:int,b:string>, l array<int>, p map<string,int>, b binary"
    state = value(schema).made
    noon = dt.datetime(2024, 5, 1, 12, 0, 0, 123456)
    state.update(
        (noon.replace(tzinfo=dt.UTC), noon.date(), Decimal("1.5"), (1, "x"), (1, 2), {"k": 1}, bytearray(b"z"))
    )
    got = state.get()
    assert got == (noon, noon.date(), Decimal("1.50"), (1, "x"), [1, 2], {"k": 1}, b"z")
    assert isinstance(got[3], Row)
    assert (got[3].b, got[3].asDict()) == ("x", {"a": 1, "b": "x"})


def test_a_value_over_the_limit_is_refused_with_variable_and_key():
    world = value("s string", value_bytes_max=100)
    world.made.update(("x" * 90,))
    with pytest.raises(StateTooLarge) as caught:
        world.made.update(("x" * 101,))
    assert (caught.value.fields["variable"], caught.value.fields["key"]) == ("v", A)
    assert world.made.get() == ("x" * 90,)


# --- list state


def test_list_keeps_the_order_of_what_was_put_and_appended():
    state = elements().made
    assert not state.exists()
    assert list(state.get()) == []
    state.appendValue((1,))
    state.appendList([(2,), (3,)])
    assert list(state.get()) == [(1,), (2,), (3,)]
    state.put([(9,)])
    state.appendValue((10,))
    assert list(state.get()) == [(9,), (10,)]
    assert state.exists()
    state.clear()
    assert not state.exists()


def test_list_get_is_an_iterator_that_later_appends_do_not_reach():
    state = elements().made
    state.put([(1,), (2,)])
    got = state.get()
    assert next(got) == (1,)
    state.appendValue((3,))
    assert list(got) == [(2,)]
    assert len([state.appendValue(e) for e in state.get()]) == 3


@pytest.mark.parametrize("method", ["put", "appendList"])
@pytest.mark.parametrize(
    "given", [[], iter([]), None, 5, "ab", [5], [("x",)], (1, 2)], ids=lambda v: repr(v).partition(" object at")[0]
)
def test_an_empty_list_and_what_is_no_list_of_tuples_are_refused_as_in_spark(method, given):
    world = elements()
    with pytest.raises(StateTypeError) as caught:
        getattr(world.made, method)(given)
    assert caught.value.fields["variable"] == "l"
    assert not world.made.exists()


# --- map state


def test_map_gives_back_what_was_put_under_each_key():
    state = entries().made
    assert (state.exists(), state.getValue(("x",)), state.containsKey(("x",))) == (False, None, False)
    state.updateValue(("x",), (1,))
    state.updateValue(("y",), (2,))
    state.updateValue(("x",), (3,))
    assert state.getValue(("x",)) == (3,)
    assert state.containsKey(("y",))
    assert list(state.iterator()) == [(("x",), (3,)), (("y",), (2,))]
    assert (list(state.keys()), list(state.values())) == ([("x",), ("y",)], [(3,), (2,)])
    state.removeKey(("x",))
    state.removeKey(("never there",))
    assert list(state.keys()) == [("y",)]
    state.clear()
    assert not state.exists()


def test_map_may_be_changed_while_it_is_iterated():
    state = entries().made
    for n in range(3):
        state.updateValue((str(n),), (n,))
    for user_key in state.keys():  # noqa: SIM118 (it is no dict)
        state.removeKey(user_key)
    assert not state.exists()


@pytest.mark.parametrize("call", [("getValue", "xy"), ("updateValue", ("x",), 5), ("getValue", (b"x",))], ids=repr)
def test_map_keys_and_values_of_the_wrong_type_are_refused(call):
    state = entries().made
    with pytest.raises(StateTypeError) as caught:
        getattr(state, call[0])(*call[1:])
    assert caught.value.fields["variable"] == "m"


@given(st.lists(st.tuples(st.sampled_from("puraclxg"), st.integers(0, 3), st.integers()), max_size=30))
def test_states_agree_with_plain_dicts_and_lists(steps):
    world = World(
        lambda h: (
            h.getMapState("m", "k int", "n string"),
            h.getListState("l", "n string"),
            h.getValueState("v", "n string"),
        )
    )
    a_map, a_list, a_value = world.made
    model_map, model_list, model_value = {}, [], None
    for step, at, number in steps:
        text = str(number)
        match step:
            case "p":
                a_map.updateValue((at,), (text,))
                model_map[(at,)] = (text,)
            case "u":
                a_value.update((text,))
                model_value = (text,)
            case "r":
                a_map.removeKey((at,))
                model_map.pop((at,), None)
            case "a":
                a_list.appendList([(text,)] * (at + 1))
                model_list += [(text,)] * (at + 1)
            case "c":
                a_map.clear()
                model_map = {}
            case "l":
                a_list.put([(text,)])
                model_list = [(text,)]
            case "x":
                a_list.clear()
                a_value.clear()
                model_list, model_value = [], None
            case "g":
                world.state.commit()
        assert dict(a_map.iterator()) == model_map
        assert list(a_list.get()) == model_list
        assert a_value.get() == model_value
        assert (a_map.exists(), a_list.exists(), a_value.exists()) == (
            bool(model_map),
            bool(model_list),
            model_value is not None,
        )


# --- time to live


@pytest.mark.parametrize("make", [value, elements, entries])
def test_state_is_gone_when_its_time_to_live_is_over(make):
    world = make(ttl=1000, time_mode="processingtime")
    state = world.made
    write = {
        "v": lambda: state.update((1,)),
        "l": lambda: state.put([(1,)]),
        "m": lambda: state.updateValue(("x",), (1,)),
    }
    world.state.now_ms = 5000
    write[world.variables[0].name]()
    world.state.now_ms = 5999
    assert state.exists()
    world.state.now_ms = 6000
    assert not state.exists()


@pytest.mark.parametrize(("ttl", "time_mode"), [(1000, "none"), (1000, "eventtime"), (-1, "processingtime")])
def test_a_time_to_live_needs_processing_time_and_to_be_positive(ttl, time_mode):
    with pytest.raises(DefinitionError, match="TTL"):
        value(ttl=ttl, time_mode=time_mode)


def test_a_time_to_live_of_zero_is_none_as_in_spark():
    assert value(ttl=0).variables[0].ttl_ms is None


# --- timers


def timers(time_mode: str = "eventtime") -> World:
    return World(lambda handle: handle, time_mode)


def test_timers_are_listed_in_order_for_their_key_only():
    world = timers()
    handle = world.made
    for at in (30, 10, 20, 10, np.int64(40)):
        handle.registerTimer(at)
    handle.deleteTimer(20)
    handle.deleteTimer(99)
    assert list(handle.listTimers()) == [10, 30, 40]
    for at in handle.listTimers():
        handle.deleteTimer(at)
    assert list(handle.listTimers()) == []
    handle.registerTimer(10)
    world.at(B)
    assert list(handle.listTimers()) == []


@pytest.mark.feature("timers", "timers with `timeMode` none are refused, with a PySparkRuntimeError")
@pytest.mark.parametrize("call", ["registerTimer", "deleteTimer", "listTimers"])
def test_timers_need_a_time_mode_and_a_key(call):
    arguments = () if call == "listTimers" else (5,)
    with pytest.raises(DefinitionError, match="timeMode"):
        getattr(timers("none").made, call)(*arguments)
    world = timers()
    world.at(None)
    with pytest.raises(DefinitionError, match="outside"):
        getattr(world.made, call)(*arguments)


@pytest.mark.parametrize("given", [1.5, "5", None, 2**63])
def test_a_timer_takes_whole_milliseconds(given):
    with pytest.raises(StateTypeError):
        timers().made.registerTimer(given)


# --- declaring


def test_init_declares_variables_in_order_with_their_schemas():
    def init(handle):
        handle.getValueState("v", sql.StructType([sql.StructField("n", sql.LongType(), False)]))
        handle.getListState("l", "s string, t timestamp", ttlDurationMs=7)
        handle.getMapState("m", "k int", "x double")

    made = World(init, "processingtime").variables
    assert [(v.name, v.kind, v.ttl_ms) for v in made] == [("v", "value", None), ("l", "list", 7), ("m", "map", None)]
    assert made[0].schema == pa.schema([pa.field("n", pa.int64(), nullable=False)])
    assert made[1].schema == pa.schema([("s", pa.string()), ("t", pa.timestamp("us", "UTC"))])
    assert made[2].key_schema == pa.schema([("k", pa.int32())])


def test_a_variable_is_found_by_name_wherever_the_state_keeps_it():
    world = World(lambda h: (h.getValueState("a", "n long"), h.getValueState("b", "n long")))
    scope = Scope("none", "UTC", VALUE_BYTES_MAX, lambda key: key)
    scope.state, scope.key = KeyedState(world.variables[::-1], KEYS), A
    handle = Handle(scope, scope.state.variables)
    handle.getValueState("a", "n long").update((1,))
    assert scope.state.value_get(1, A) is not None


@pytest.mark.parametrize("name", ["", " v", "v ", "$v", None, 5])
def test_names_that_spark_does_not_take_are_refused(name):
    with pytest.raises(DefinitionError, match="name"):
        World(lambda handle: handle.getValueState(name, "n long"))


def test_a_name_used_twice_is_refused_whatever_the_kinds():
    with pytest.raises(DefinitionError, match="twice"):
        World(lambda handle: (handle.getValueState("v", "n long"), handle.getMapState("v", "k int", "n long")))


def test_removed_names_are_reported_and_not_declared_again():
    assert World(lambda handle: handle.deleteIfExists("old")).removed == ("old",)
    with pytest.raises(DefinitionError, match="old"):
        World(lambda handle: (handle.deleteIfExists("old"), handle.getValueState("old", "n long")))


def deleted(declare: Callable[[Handle], Any]) -> Any:
    def init(handle: Handle) -> Any:
        first, state, last = handle.getValueState("a", "n long"), declare(handle), handle.getValueState("z", "n long")
        handle.deleteIfExists("old")
        return first, state, last

    world = World(init)
    world.handle.check_declared()
    assert ([v.name for v in world.variables], world.removed) == (["a", "z"], ("old",))
    first, state, last = world.made
    first.update((1,))
    last.update((2,))
    assert (first.get(), last.get()) == ((1,), (2,))
    return state


DELETED = {
    "exists": (lambda state: state.exists(), r"Error checking (value|map) state exists"),
    "clear": (lambda state: state.clear(), r"Error clearing (value|map) state"),
    "update": (lambda state: state.update((1,)), "Error updating value state"),
    "put": (lambda state: state.put([(1,)]), "Error updating value state"),
    "appendValue": (lambda state: state.appendValue((1,)), "Error updating value state"),
    "updateValue": (lambda state: state.updateValue((1,), (1,)), "Error updating map state value"),
    "containsKey": (lambda state: state.containsKey((1,)), "Error checking if map state contains key"),
}


@pytest.mark.parametrize(
    ("declare", "methods"),
    [
        (lambda h: h.getValueState("old", "n long"), "exists update clear"),
        (lambda h: h.getListState("old", "n long"), "exists put appendValue clear"),
        (lambda h: h.getMapState("old", "k long", "n long"), "exists updateValue containsKey clear"),
    ],
)
def test_a_variable_that_the_same_init_deletes_refuses_every_use_as_in_spark(declare, methods):
    state = deleted(declare)
    for method in methods.split():
        call, message = DELETED[method]
        with pytest.raises(PySparkRuntimeError, match=message) as caught:
            call(state)
        assert isinstance(caught.value, DefinitionError)
        assert "'old'" in str(caught.value)


def test_iterators_of_a_deleted_list_or_map_are_empty_as_in_spark():
    assert list(deleted(lambda h: h.getListState("old", "n long")).get()) == []
    a_map = deleted(lambda h: h.getMapState("old", "k long", "n long"))
    assert [list(each()) for each in (a_map.keys, a_map.values, a_map.iterator)] == [[], [], []]


def test_after_init_nothing_can_be_declared_or_removed():
    handle = value().handle
    for call in (lambda: handle.getListState("x", "n long"), lambda: handle.deleteIfExists("x")):
        with pytest.raises(DefinitionError, match="init"):
            call()


def test_an_init_that_declares_other_variables_on_a_host_is_refused():
    world = value()
    for call in (lambda h: h.getValueState("other", "n long"), lambda h: h.getListState("v", "n long")):
        handle = Handle(Scope("none", "UTC", VALUE_BYTES_MAX, lambda key: key), world.variables)
        call(handle)
        with pytest.raises(DefinitionError, match="driver"):
            handle.check_declared()


@pytest.mark.parametrize("make", [value, elements, entries])
def test_state_is_refused_where_there_is_no_key(make):
    world = make()
    world.at(None)
    with pytest.raises(DefinitionError, match="outside"):
        world.made.exists()
    with pytest.raises(DefinitionError, match="outside"):
        world.made.clear()


class Point(sql.UserDefinedType):
    @classmethod
    def sqlType(cls) -> sql.DataType:
        return sql.StructType([sql.StructField("x", sql.LongType())])


@pytest.mark.parametrize(
    "schema",
    [
        sql.LongType(),
        None,
        sql.StructType([sql.StructField("p", sql.ArrayType(Point()))]),
        sql.StructType([sql.StructField("p", sql.StructType([sql.StructField("q", sql.VariantType())]))]),
        sql.StructType([sql.StructField("p", sql.CalendarIntervalType())]),
        sql.StructType([sql.StructField("p", sql.TimeType())]),
    ],
    ids=str,
)
def test_schemas_that_cannot_be_kept_are_refused_when_they_are_declared(schema):
    with pytest.raises(DefinitionError) as caught:
        World(lambda handle: handle.getValueState("v", schema))
    assert caught.value.fields["variable"] == "v"


# --- schemas as text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a int", "struct<a:int>"),
        ("a INT, b: Long , c bigint", "struct<a:int,b:bigint,c:bigint>"),
        ("a tinyint, b short, c real, d double, e boolean", "struct<a:tinyint,b:smallint,c:float,d:double,e:boolean>"),
        ("a decimal, b decimal(5), c numeric(20, 3)", "struct<a:decimal(10,0),b:decimal(5,0),c:decimal(20,3)>"),
        ("a date, b timestamp, c timestamp_ntz", "struct<a:date,b:timestamp,c:timestamp_ntz>"),
        ("a array<array<string>>, b binary", "struct<a:array<array<string>>,b:binary>"),
        ("a map<string, struct<x: int, y: array<double>>>", "struct<a:map<string,struct<x:int,y:array<double>>>>"),
        ("`a b` int COMMENT 'one, two', date date", "struct<a b:int,date:date>"),
    ],
)
def test_ddl_is_read_without_a_jvm(text, expected):
    assert parse_ddl(text).simpleString() == expected


def test_ddl_knows_what_must_not_be_null():
    parsed = parse_ddl("a int NOT NULL, b struct<x: int not null, y: int>")
    assert [field.nullable for field in parsed] == [False, True]
    assert [field.nullable for field in parsed["b"].dataType] == [False, True]
    assert variable_schema("a int NOT NULL", "v") == pa.schema([pa.field("a", pa.int32(), nullable=False)])


@pytest.mark.parametrize(
    "text", ["", "a", "a int,", "a nothing", "a array<int", "a map<int>", "a int b int", "1 2 3 (", "<a int"]
)
def test_ddl_that_makes_no_sense_is_refused(text):
    with pytest.raises(DefinitionError, match="cannot be read"):
        parse_ddl(text)

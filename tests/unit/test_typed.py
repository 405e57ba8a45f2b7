"""Typed messages: what is sent arrives as it was, and what does not fit is refused with the name of the field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from godwit.errors import GodwitError, HostUnavailable, MalformedRequest
from godwit.model.progress import Progress
from godwit.model.units import Unit, Units
from godwit.transport import typed, wire


@dataclass(frozen=True, slots=True)
class StepOpened(typed.Message):
    step: int
    units: Units
    epochs: typed.Epochs
    progress: Progress | None = None
    parts: tuple[Units, ...] = ()
    written: tuple[int, int] | None = None
    share: float = 0.5
    again: bool = False
    anything: dict[str, Any] = field(default_factory=dict)


class Place(NamedTuple):
    group: int
    host: str | None


@dataclass(frozen=True, slots=True)
class Inner(typed.Message):
    rows: list[int]
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Outer(typed.Message):
    inner: Inner | None = None
    code: bytes = b""
    codes: dict[str, bytes] = field(default_factory=dict)
    error: GodwitError | None = None


@dataclass(frozen=True, slots=True)
class Sum(typed.Message):
    total: int


@dataclass(frozen=True, slots=True)
class Add(typed.Request[Sum]):
    left: int
    right: int = 1


FULL = StepOpened(
    3,
    Units(frozenset({1, 2}), frozenset({-7})),
    {Unit("group", 1): 4, Unit("key", -7): 2},
    Progress(),
    (Units(frozenset({5})), Units()),
    (1, 20),
    1.25,
    True,
    {"a": [1, None]},
)


@pytest.mark.parametrize("message", [FULL, StepOpened(0, Units(), {})])
def test_a_message_arrives_as_it_was_sent(message: StepOpened) -> None:
    assert typed.unpack(typed.pack(message), Sum, StepOpened) == message


def test_a_message_is_named_after_its_class_and_carries_no_defaults() -> None:
    header = wire.unpack(typed.pack(StepOpened(0, Units(), {})))
    assert header == {
        "v": wire.WIRE_VERSION,
        "kind": "step_opened",
        "step": 0,
        "units": {"groups": [], "keys": []},
        "epochs": [],
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "3"),
        ("step", True),
        ("step", None),
        ("units", [1]),
        ("epochs", [["group", 1]]),
        ("progress", 4),
        ("parts", [3]),
        ("again", 1),
        ("share", "much"),
        ("anything", []),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(name: str, value: Any) -> None:
    header = wire.pack("step_opened", **(typed.to_fields(FULL) | {name: value}))
    with pytest.raises(MalformedRequest, match=f"'{name}' of a 'step_opened'"):
        typed.unpack(header, StepOpened)


def test_messages_named_tuples_and_bytes_travel_within_a_message() -> None:
    message = Outer(Inner([3, 1], (Place(7, "a"), Place(8, None))), b"\x00\xff", {"a": b"1"})
    assert typed.unpack(typed.pack(message), Outer) == message
    assert typed.unpack(typed.pack(Outer()), Outer) == Outer()


def test_an_error_travels_within_a_message() -> None:
    arrived = typed.unpack(typed.pack(Outer(error=HostUnavailable("away", host="a"))), Outer)
    assert isinstance(arrived, Outer)
    assert isinstance(arrived.error, HostUnavailable)
    assert arrived.error.fields["host"] == "a"


@pytest.mark.parametrize("inner", [5, {"rows": 1}, {"rows": [], "places": [[1]]}, {}])
def test_a_message_within_a_message_that_does_not_fit_is_refused(inner: Any) -> None:
    with pytest.raises(MalformedRequest, match=r"'inner'|'rows'|'places'"):
        typed.unpack(wire.pack("outer", inner=inner), Outer)


def test_a_missing_field_is_refused_by_name() -> None:
    with pytest.raises(MalformedRequest, match="'total'"):
        typed.unpack(wire.pack("sum"), Sum)


def test_another_message_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="'sum' where one of step_opened, add"):
        typed.unpack(typed.pack(Sum(1)), StepOpened, Add)


class Service:
    """Answers as a service does that runs the actions in this process."""

    def __init__(self) -> None:
        self.actions = typed.actions({Add: lambda request: Sum(request.left + request.right)})

    def call(self, action: str, timeout_s: float = 30.0, **fields: Any) -> dict[str, Any]:
        if action not in self.actions:
            raise HostUnavailable(action)
        return wire.unpack(wire.pack("result", **self.actions[action](fields)))


def test_a_request_gets_the_answer_of_its_class() -> None:
    assert typed.ask(Service(), Add(2)) == Sum(3)


def test_a_request_whose_fields_do_not_fit_is_refused_where_it_is_handled() -> None:
    with pytest.raises(MalformedRequest, match="'left'"):
        Service().call("add", right=1)

"""A state variable that init declared and deleted: the processor has it, and every use of it is refused, as in Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NoReturn

from pyspark.errors import PySparkRuntimeError

from godwit.errors import DefinitionError
from godwit.state.variables import VariableKind

# What Spark says of a call, by method. As in Spark, the iterators of a deleted list or map have no items.
_DOING: Final[Mapping[VariableKind, Mapping[str, str]]] = {
    "value": {
        "exists": "checking value state exists",
        "get": "getting value state",
        "update": "updating value state",
        "clear": "clearing value state",
    },
    "list": {
        "exists": "checking value state exists",
        "put": "updating value state",
        "appendValue": "updating value state",
        "appendList": "updating value state",
        "clear": "clearing value state",
    },
    "map": {
        "exists": "checking map state exists",
        "getValue": "getting value",
        "containsKey": "checking if map state contains key",
        "updateValue": "updating map state value",
        "removeKey": "removing key from map state",
        "clear": "clearing map state",
    },
}
_ITERATORS: Final[Mapping[VariableKind, tuple[str, ...]]] = {
    "value": (),
    "list": ("get",),
    "map": ("iterator", "keys", "values"),
}


class StateRefused(DefinitionError, PySparkRuntimeError):
    """A call that Spark refuses with a PySparkRuntimeError: a processor may catch that, and go on."""


def delete(made: object, kind: VariableKind, what: str, shown_key: Callable[[], Any]) -> None:
    """Let every method of a state variable refuse its call."""

    def refuse(doing: str, *_: Any) -> NoReturn:
        raise StateRefused(
            f"Error {doing}: {what} was deleted by deleteIfExists in init",
            key=shown_key(),
            todo="Do not use a state variable that init deletes",
        )

    for method, doing in _DOING[kind].items():
        setattr(made, method, partial(refuse, doing))
    for method in _ITERATORS[kind]:
        setattr(made, method, partial(iter, ()))

"""The keys of an operator as a user names them: columns by name, or Columns as for groupBy, also expressions.

An expression becomes a further column of the input, which the processor does not see in its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from godwit.errors import DefinitionError

Key = str | Column
Keys = Key | list[Key] | tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class KeyedFrame:
    """The input with a column for each key. `added`: the keys that are not columns of the user's input."""

    frame: DataFrame
    keys: tuple[str, ...]
    added: tuple[str, ...] = ()


def keyed_frame(frame: Any, keys: Any) -> KeyedFrame:
    named = _listed(keys)
    if not isinstance(frame, DataFrame):  # refused later, with an error that says what is expected
        return KeyedFrame(frame, tuple(str(key) for key in named))
    names: list[str] = []
    added: dict[str, Column] = {}
    for key in named:
        name, expression = _resolved(frame, key)
        names.append(name)
        if expression is not None:
            added[name] = expression
    return KeyedFrame(frame.withColumns(added) if added else frame, tuple(names), tuple(added))


def _listed(keys: Any) -> tuple[Any, ...]:
    listed = tuple(keys) if isinstance(keys, (list, tuple)) else (keys,)
    if not all(isinstance(key, (str, Column)) for key in listed):
        raise DefinitionError(
            f"keys={keys!r} does not name columns",
            todo="Give the name of a column, a Column as for groupBy, or a list of these",
        )
    return listed


def _resolved(frame: DataFrame, key: Key) -> tuple[str, Column | None]:
    """The column of the input that the key means; or a name, and the expression that gives the key."""
    if isinstance(key, str) and key in frame.columns:
        return key, None
    try:
        selected: Any = frame.select(key)
    except AnalysisException as error:
        if isinstance(key, str):  # a name that is no column is refused later, with the names of the columns
            return key, None
        raise DefinitionError(
            f"the key {key} cannot be computed from the input: {error.getCondition()}",
            todo=f"The columns of the input are {', '.join(frame.columns)}",
        ) from error
    (name,) = selected.columns
    (expression,) = _project_list(selected)
    if expression.nodeName() == "AttributeReference" and name in frame.columns:
        return name, None
    if name in frame.columns:
        raise DefinitionError(
            f"the key {key} would be named {name!r}, as a column of the input", todo="Give the key a name with alias()"
        )
    return name, sf.col(key) if isinstance(key, str) else key


def _project_list(selected: Any) -> list[Any]:
    expressions = selected._jdf.queryExecution().analyzed().projectList()
    return [expressions.apply(at) for at in range(expressions.size())]

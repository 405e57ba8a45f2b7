"""The state variables of an operator over all its definitions: under which number the values of each form are stored.

Every change row names a number, and a number means one variable with one schema for ever: a variable whose schema changes gets
a new number. So rows in changelogs, snapshots, backups and copies say by themselves which form they have, and rows of old forms
are converted when they are read. Decides numbers, and which changes are refused; how values are converted is
`value_conversion`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from godwit.errors import HostUnavailable
from godwit.state.changes import COLUMN_VALUE, COLUMN_VAR, LETTERS, TIMERS
from godwit.state.deadlines import STAMP_BYTES
from godwit.state.value_conversion import conversion, obstacles
from godwit.state.variables import Variable

_NUMBERS_MAX: Final = LETTERS


@dataclass(frozen=True, slots=True)
class PastForm:
    """A form in which values may still be stored and that no variable of the newest definition has.

    `successor`: the number of the form that replaced it. Without one the variable is not declared now: its values stay as they
    are until it is declared again, unless it was deleted.
    """

    number: int
    variable: Variable
    successor: int | None = None
    deleted: bool = False

    @property
    def dormant(self) -> bool:
        return self.successor is None and not self.deleted

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "variable": self.variable.to_json(),
            "successor": self.successor,
            "deleted": self.deleted,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["number"], Variable.from_json(data["variable"]), data["successor"], data["deleted"])


@dataclass(frozen=True)
class Layout:
    """`numbers`: of the variables, in their order."""

    variables: tuple[Variable, ...]
    numbers: tuple[int, ...]
    past: tuple[PastForm, ...] = ()

    @classmethod
    def first(cls, variables: Sequence[Variable]) -> Layout:
        return cls(tuple(variables), tuple(range(len(variables))))

    @cached_property
    def forms(self) -> dict[int, Variable]:
        """Every form by its number."""
        now = zip(self.numbers, self.variables, strict=True)
        return {past.number: past.variable for past in self.past} | dict(now)

    @cached_property
    def newest(self) -> dict[int, int]:
        """By number, the number of the newest form of the same variable. A variable that was deleted has none."""
        newest = {number: number for number in self.numbers}
        for past in sorted(self.past, key=lambda past: -past.number):  # a successor has a higher number
            if past.dormant:
                newest[past.number] = past.number
            elif past.successor in newest:
                newest[past.number] = newest[past.successor]
        return newest

    @cached_property
    def dormant(self) -> dict[int, Variable]:
        """Variables that are not declared now and have state, by number."""
        return {past.number: past.variable for past in self.past if past.dormant}

    def steps(self, number: int) -> list[int]:
        """The numbers of the forms that a value of this number goes through, the newest last."""
        successors = {past.number: past.successor for past in self.past if past.successor is not None}
        steps = [number]
        while (following := successors.get(steps[-1])) is not None:
            steps.append(following)
        return steps

    # -- the next definition -----------------------------------------------------------------------------------------

    def refusals(self, declared: Sequence[Variable], deleted: Sequence[str] = ()) -> list[str]:
        """Why state of this layout cannot become state of the declared variables."""
        known = self._known()
        pairs = [(known[each.name][1], each) for each in declared if each.name in known and each.name not in deleted]
        return [
            f"state variable {new.name!r}: {reason}" for old, new in pairs for reason in variable_obstacles(old, new)
        ]

    def evolved(self, declared: Sequence[Variable], deleted: Sequence[str] = ()) -> Layout:
        """The layout of the next definition. Changes that `refusals` names must not come here."""
        known = self._known()
        past = {each.number: each for each in self.past if not each.dormant}
        unused = max(self.forms, default=-1) + 1
        numbers = []
        for variable in declared:
            number, old = known.pop(variable.name, (None, None))
            if number is not None and old is not None and variable.name in deleted:
                past[number], number = PastForm(number, old, deleted=True), None
            elif number is not None and old is not None and not variable.schema.equals(old.schema):
                past[number], number = PastForm(number, old, unused), None
            if number is None:
                number, unused = unused, unused + 1
            numbers.append(number)
        for number, old in known.values():
            past[number] = PastForm(number, old, deleted=old.name in deleted)
        assert unused < _NUMBERS_MAX, "a new definition does not come so often"
        return Layout(tuple(declared), tuple(numbers), tuple(past[number] for number in sorted(past)))

    def _known(self) -> dict[str, tuple[int, Variable]]:
        """The variables that have state, with their numbers, by name."""
        now = dict(zip(self.numbers, self.variables, strict=True))
        return {variable.name: (number, variable) for number, variable in (self.dormant | now).items()}


def variable_obstacles(old: Variable, new: Variable) -> list[str]:
    """Why values of a variable cannot become values of its later declaration."""
    if new.kind != old.kind:
        return [f"it is a {old.kind} state in the checkpoint and a {new.kind} state now"]
    reasons = []
    if old.key_schema is not None and new.key_schema is not None and not new.key_schema.equals(old.key_schema):
        reasons.append(
            f"the key of the map is {shown(old.key_schema)} in the checkpoint and {shown(new.key_schema)} now"
        )
    if (old.ttl_ms is None) != (new.ttl_ms is None):
        was, now = ("none" if ttl_ms is None else f"{ttl_ms} ms" for ttl_ms in (old.ttl_ms, new.ttl_ms))
        reasons.append(f"its TTL is {was} in the checkpoint and {now} now: a TTL can be changed, not added or removed")
    return reasons + [str(obstacle) for obstacle in obstacles(old.schema, new.schema)]


def shown(schema: pa.Schema) -> str:
    columns = [f"{column.name} {column.type}{'' if column.nullable else ' not null'}" for column in schema]
    return f"({', '.join(columns)})"


def _unknown_form(number: int) -> HostUnavailable:
    return HostUnavailable(
        f"state came in the form {number} of a later definition, which this process does not have yet",
        todo="Define the operator, then try again",
    )


class FormReader:
    """Gives change rows of any form in the newest form of their variables."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._current = {*layout.numbers, *layout.dormant, TIMERS, LETTERS}
        self._converts: dict[int, Callable[[bytes], bytes]] = {}

    def current(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, without those of variables that were deleted. Raises if a form is not known."""
        old = self.old_forms(batch)
        if not old:
            return batch
        newest = self._layout.newest
        return _replaced(batch, {number: newest.get(number) for number in old}, self.converted)

    def old_forms(self, batch: pa.RecordBatch) -> list[int]:
        """The numbers of the forms of the rows that are not the newest. Raises if a form is not known."""
        numbers = np.unique(batch.columns[COLUMN_VAR].to_numpy()).tolist()
        old = [number for number in numbers if number not in self._current]
        for number in old:
            if number not in self._layout.forms:
                raise _unknown_form(number)
        return old

    def converted(self, number: int, payload: bytes) -> bytes:
        """A value of an old form in the newest form."""
        if number not in self._converts:
            self._converts[number] = payload_conversion(self._layout, number)
        return self._converts[number](payload)


def payload_conversion(layout: Layout, number: int) -> Callable[[bytes], bytes]:
    """Converts stored values of this number, through all forms that came after it."""
    forms = [layout.forms[each] for each in layout.steps(number)]
    steps = [conversion(old.schema, new.schema) for old, new in pairwise(forms)]
    stamp = 0 if forms[0].ttl_ms is None else STAMP_BYTES

    def convert(payload: bytes) -> bytes:
        value = payload[stamp:]
        for step in steps:
            value = step(value)
        return payload[:stamp] + value

    return convert


def _replaced(
    batch: pa.RecordBatch, newest: Mapping[int, int | None], convert: Callable[[int, bytes], bytes]
) -> pa.RecordBatch:
    var = batch.columns[COLUMN_VAR].to_numpy()
    values = batch.columns[COLUMN_VALUE].to_pylist()
    numbers = var.copy()
    stays = np.ones(len(var), np.bool_)
    for row in np.flatnonzero(np.isin(var, list(newest))).tolist():
        old = int(var[row])
        new = newest[old]
        if new is None:
            stays[row] = False
            continue
        numbers[row] = new
        value = values[row]
        values[row] = None if value is None else convert(old, value)
    columns = list(batch.columns)
    columns[COLUMN_VAR], columns[COLUMN_VALUE] = pa.array(numbers), pa.array(values, pa.binary())
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema).filter(pa.array(stays))

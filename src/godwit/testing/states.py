"""Whether two states are the same, and if not, which key and variable tell them apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
_FLOAT = 1e-9  # how far floats may differ, as a part of them: sums in another order round otherwise


def check_same(one_by_one: Sequence[Record], merged: Sequence[Record], key_names: Sequence[str]) -> None:
    first, second = (_by_key(records, key_names) for records in (one_by_one, merged))
    for key in [*first, *(key for key in second if key not in first)]:
        named = ", ".join(f"{name} {value}" for name, value in zip(key_names, key, strict=True))
        if key not in first or key not in second:
            has, lacks = ("merged", "one by one") if key in second else ("one by one", "merged")
            raise AssertionError(f"{named}: has state if its rows are applied {has}, and none if {lacks}")
        for name, value in first[key].items():
            if not _same(value, second[key][name]):
                raise AssertionError(
                    f"{named}: {name!r} is {value!r} if its rows are applied one by one, "
                    f"and {second[key][name]!r} if they are merged before"
                )


def _by_key(records: Sequence[Record], key_names: Sequence[str]) -> dict[tuple[str, ...], dict[str, Any]]:
    states = {}
    for record in records:
        key = tuple(repr(record[name]) for name in key_names)  # one NaN is as good as another
        states[key] = {name: value for name, value in record.items() if name not in key_names}
    return states


def _same(one: Any, other: Any) -> bool:
    match one, other:
        case float(), float():
            return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=_FLOAT)
        case dict(), dict():
            return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
        case list() | tuple(), list() | tuple():
            return len(one) == len(other) and all(map(_same, one, other))
        case _:
            return bool(one == other)

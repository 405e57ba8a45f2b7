"""Lengths of time as users write them: "10 seconds", "1 hour 30 minutes", a timedelta.

Decides which lengths a window may have: whole milliseconds, because timers have that resolution, and no
months or years, because their length varies.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final, TypeAlias

from godwit.errors import DefinitionError

Duration: TypeAlias = str | dt.timedelta

_UNITS_US: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def duration_ms(value: Duration, what: str, *, zero_allowed: bool = False) -> int:
    """The length in milliseconds; `what` names it in errors."""
    micros = value // dt.timedelta(microseconds=1) if isinstance(value, dt.timedelta) else _parse(value, what)
    if micros % 1_000:
        raise DefinitionError(f"{what} {str(value)!r} is not a whole number of milliseconds")
    if micros < 0 or (micros == 0 and not zero_allowed):
        raise DefinitionError(f"{what} {str(value)!r} must be {'at least' if zero_allowed else 'more than'} zero")
    return micros // 1_000


def _parse(text: object, what: str) -> int:
    rest = text.lower().strip().removeprefix("interval ") if isinstance(text, str) else ""
    micros, at = 0.0, 0
    while match := _PART.match(rest, at):
        unit = match[2].removesuffix("s")
        if unit not in _UNITS_US:
            break
        micros += float(match[1]) * _UNITS_US[unit]
        at = match.end()
    if not rest or at != len(rest):
        raise DefinitionError(
            f"{what} {text!r} is not a length of time",
            todo=f"Write a number and a unit of {', '.join(_UNITS_US)}",
        )
    return round(micros)

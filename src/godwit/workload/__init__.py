"""What a generated workload is: its shape, its size, its speed, and the text options that name them.

Decides which options exist, their defaults and their limits, and which of them fix the rows (`identity`):
two workloads with the same identity and the same start time have the same rows. It must not know how rows
are made (`rows`) or who reads them. Key-count follows the counter benchmark of Meces, traffic the traffic
monitoring of Falcon, word-count the text of SEEP's failure tests; all draw keys uniformly or by Zipf's law
in place of those generators' own, unseeded ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

from godwit.errors import DefinitionError

__all__ = ["KEY_COUNT", "LINE_WORDS", "ROWS_MAX", "SPEEDS", "WORDS", "LaneBy", "Shape", "Workload"]

Shape = Literal["key-count", "traffic", "word-count"]
LaneBy = Literal["key", "row"]
_Name = TypeVar("_Name", bound=str)

KEY_COUNT: Final[Shape] = "key-count"
SPEEDS: Final[Shape] = "traffic"
WORDS: Final[Shape] = "word-count"

LINE_WORDS: Final = 8  # of a row of text
# A row's due time is counted in microseconds from its number: 10**12 rows times 10**6 still fits 64 bits.
ROWS_MAX: Final = 10**12
# A batch's worth of rows when no rate says how many are due.
_ROWS_PER_BATCH: Final = 100_000
_KEYS: Final[Mapping[str, int]] = {KEY_COUNT: 100_000, SPEEDS: 10, WORDS: 10_000}
# A line has words of many keys, so no key can name its lane.
_LANE_BY: Final[Mapping[str, LaneBy]] = {KEY_COUNT: "key", SPEEDS: "key", WORDS: "row"}
_SKEW_MAX: Final = 10.0
_LIMITS: Final[Mapping[str, tuple[int, int]]] = {
    "rows_per_second": (0, 10**9),
    "rows_per_batch": (1, ROWS_MAX),
    "keys": (1, 2**40),
    "payload_bytes": (0, 16 * 2**20),
    "lanes": (1, 4096),
    "rows": (0, ROWS_MAX),
    "seed": (0, 2**63 - 1),
    "start": (0, 253_402_300_799_999),  # the last millisecond of the year 9999
}
_OPTIONS: Final = ("workload", "skew", "lane_by", *_LIMITS)


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload. `rows` None: endless. `start` (epoch ms of row 0) None: whoever reads first fixes it."""

    shape: Shape = KEY_COUNT
    rows_per_second: int = 1_000
    rows_per_batch: int | None = None
    keys: int = _KEYS[KEY_COUNT]
    skew: float = 0.0
    payload_bytes: int = 0
    lanes: int = 2
    lane_by: LaneBy = "key"
    rows: int | None = None
    seed: int = 0
    start: int | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Workload:
        """The workload that the text options describe; an unknown option or a bad value is refused."""
        given = {name.lower(): text for name, text in options.items()}
        for name, text in given.items():
            if name not in _OPTIONS:
                raise _refused(name, text, f"is not an option; the options are {', '.join(_OPTIONS)}")
        shape: Shape = _choice(given, "workload", KEY_COUNT, get_args(Shape))
        rows_per_second = _whole(given, "rows_per_second", 1_000)
        payload_bytes = _whole(given, "payload_bytes", 0)
        if payload_bytes and shape != KEY_COUNT:
            raise _refused("payload_bytes", str(payload_bytes), f"must be 0 for workload={shape}")
        lane_by: LaneBy = _choice(given, "lane_by", _LANE_BY[shape], get_args(LaneBy))
        if lane_by == "key" and shape == WORDS:
            raise _refused("lane_by", lane_by, f"must be row for workload={shape}")
        return cls(
            shape=shape,
            rows_per_second=rows_per_second,
            rows_per_batch=_maybe(given, "rows_per_batch", None if rows_per_second else _ROWS_PER_BATCH),
            keys=_whole(given, "keys", _KEYS[shape]),
            skew=_skew(given),
            payload_bytes=payload_bytes,
            lanes=_whole(given, "lanes", 2),
            lane_by=lane_by,
            rows=_maybe(given, "rows", None),
            seed=_whole(given, "seed", 0),
            start=_maybe(given, "start", None),
        )

    @property
    def end(self) -> int:
        """The number after the last row's."""
        return ROWS_MAX if self.rows is None else self.rows

    def identity(self) -> dict[str, str]:
        """The options that fix row n and its lane; the end and the cut into batches may change."""
        return {
            "workload": self.shape,
            "rows_per_second": str(self.rows_per_second),
            "keys": str(self.keys),
            "skew": repr(self.skew),
            "payload_bytes": str(self.payload_bytes),
            "lanes": str(self.lanes),
            "lane_by": self.lane_by,
            "seed": str(self.seed),
        }


def _refused(option: str, value: str, allowed: str) -> DefinitionError:
    return DefinitionError(f"{option} {allowed}", option=option, value=repr(value))


def _maybe(given: Mapping[str, str], option: str, default: int | None) -> int | None:
    return _whole(given, option, 0) if option in given else default


def _whole(given: Mapping[str, str], option: str, default: int) -> int:
    if option not in given:
        return default
    low, high = _LIMITS[option]
    try:
        value = int(given[option])
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise _refused(option, given[option], f"must be a whole number from {low} to {high}")
    return value


def _skew(given: Mapping[str, str]) -> float:
    text = given.get("skew", "0")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= _SKEW_MAX:  # false for NaN as well
        raise _refused("skew", text, f"must be a number from 0 (uniform) to {_SKEW_MAX:g} (Zipf exponent)")
    return value + 0.0  # -0.0 and 0.0 are one identity


def _choice(given: Mapping[str, str], option: str, default: _Name, allowed: tuple[_Name, ...]) -> _Name:
    value = given.get(option, default)
    for name in allowed:
        if value == name:
            return name
    raise _refused(option, value, f"must be one of {', '.join(allowed)}")

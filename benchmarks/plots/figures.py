"""The figures by name: how each is headed, in which unit it is told, and how a number is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.plots.evaluation import Spread

MISSING: Final = "not measured"
MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Figure:
    heading: str
    unit: str = ""
    per: float = 1.0  # so many of what the line holds make one unit

    @property
    def headed(self) -> str:
        return f"{self.heading}, {self.unit}" if self.unit else self.heading


FIGURES: Final[Mapping[str, Figure]] = {
    "rate_rows_per_s": Figure("load", "rows/s"),
    "steady_mean_ms": Figure("steady latency", "ms"),
    "steady_p99_ms": Figure("steady p99", "ms"),
    "steady_peak_jitter_p99_ms": Figure("jitter while nothing moves", "ms"),
    "peak_jitter_p99_ms": Figure("peak jitter (p99)", "ms"),
    "disruption_ms": Figure("disruption", "ms"),
    "stall_p50_ms": Figure("stall p50", "ms"),
    "stall_p99_ms": Figure("stall p99", "ms"),
    "stall_max_ms": Figure("stall max", "ms"),
    "stabilise_s": Figure("stabilises in", "s"),
    "reconfiguration_s": Figure("reconfiguration", "s"),
    "recovery_s": Figure("recovery", "s"),
    "keys_moved": Figure("keys moved"),
    "bytes_moved": Figure("moved", "MB", MB),
    "rows_sent_twice": Figure("rows sent twice"),
    "re_emitted_rows": Figure("rows emitted again"),
    "extra_memory_bytes_max": Figure("extra memory", "MB", MB),
    "rest_memory_bytes": Figure("memory at rest", "MB", MB),
    "rest_bytes_per_s": Figure("sent at rest", "MB/s", MB),
    "cpu_s": Figure("CPU", "s"),
    "rows_per_s": Figure("throughput", "rows/s"),
    "batch_ms": Figure("time of a batch", "ms"),
    "p50_ms": Figure("p50", "ms"),
    "p99_ms": Figure("p99", "ms"),
    "max_ms": Figure("max", "ms"),
    "rows_out_per_s": Figure("rows out", "rows/s"),
    "cores_used": Figure("processor time", "s a second"),
    "after_silence_ms": Figure("the row after the silence", "ms"),
    "boundary_p99_ms": Figure("highest p99 within a second of a batch's end", "ms"),
}

SWEPT: Final[Mapping[str, str]] = {
    "state_bytes": "state per key",
    "keys_moved": "keys moved",
    "rate": "load, rows/s",
    "window_rows": "rows a window",
    "skew": "skew (Zipf exponent)",
    "hosts": "hosts",
    "batch_rows": "rows a batch",
    "batch_s": "seconds of a batch",
    "state_total_bytes": "state of all keys",
    "segment_bytes": "changelog that a host may have to replay",
}


def figure(name: str) -> Figure:
    return FIGURES.get(name) or Figure(name.replace("_", " "))


def swept(name: str) -> str:
    return SWEPT.get(name) or name.replace("_", " ")


def number(value: float) -> str:
    return _written(value, _digits([value]))


def _written(value: float, digits: int) -> str:
    return "not back" if math.isinf(value) else f"{value:,.{digits}f}"


def _digits(values: Sequence[float]) -> int:
    """After the point, for all of them alike, by the first that is known: three digits or so, since more would be noise."""
    known = [value for value in values if math.isfinite(value)]
    size = abs(known[0]) if known else 0.0
    if size >= 100 or all(value == round(value) for value in known):
        return 0
    if size >= 10:
        return 1
    return 2 if size >= 0.01 or size == 0 else 1 - math.floor(math.log10(size))


def value_text(spread: Spread | None, name: str) -> str:
    """The median, and the least and the greatest beside it where runs differ."""
    if spread is None:
        return MISSING
    middle, around = median_and_range(spread, name)
    return f"{middle} ({around})" if around else middle


def median_and_range(spread: Spread, name: str) -> tuple[str, str]:
    """The second is empty where runs do not differ."""
    values = [value / figure(name).per for value in (spread.median, spread.least, spread.most)]
    mid, low, high = (_written(value, _digits(values)) for value in values)
    return mid, "" if low == high else f"{low}-{high}"


def bytes_(value: float) -> str:
    """1 KB for 1,024 as for 1,000: whichever of the two leaves no fraction."""
    base = 1024 if value and value % 1024 == 0 else 1000
    for unit in ("B", "KB", "MB", "GB"):
        if value < base or unit == "GB":
            return f"{number(value)} {unit}"
        value /= base
    raise AssertionError("the loop ends with the last unit")


def point(name: str, value: float) -> str:
    """A value of what is swept."""
    return bytes_(value) if name.endswith("_bytes") else number(value)

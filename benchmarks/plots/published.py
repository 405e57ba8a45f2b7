"""What papers have published, to stand beside ours: read from `published.toml`, which names each figure's paper."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

FIGURES: Final = ("disruption_ms", "peak_jitter_p99_ms")  # in the order of the pairs in the file


@dataclass(frozen=True, slots=True)
class Paper:
    name: str
    title: str
    link: str


@dataclass(frozen=True, slots=True)
class Row:
    """One way in the published comparison: its figures by workload, where there are some."""

    name: str
    way: str
    by_workload: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Comparison:
    paper: str
    setting: str
    workloads: list[str]
    baseline: str
    rows: list[Row]

    def row(self, way: str) -> Row | None:
        return next((row for row in self.rows if row.way == way), None)

    def shares(self, way: str, figure: str, workloads: list[str]) -> list[float]:
        """A way's figure as a part of the baseline's, for each of these workloads that has both."""
        mine, base = self.row(way), self.row(self.baseline)
        if mine is None or base is None:
            return []
        both = [name for name in workloads if name in mine.by_workload and name in base.by_workload]
        return [mine.by_workload[name][figure] / base.by_workload[name][figure] for name in both]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A published line of peak jitter: values point by point, or only the range they stayed in."""

    paper: str
    swept: str
    way: str
    at: list[float]
    values: list[float]
    between: list[float]
    setting: str

    def text(self) -> str:
        if self.values:
            return ", ".join(f"{value:g}" for value in self.values) + " ms"
        return f"{self.between[0]:g}-{self.between[1]:g} ms throughout"

    def at_point(self, point: float) -> str:
        """What it says of this point, in ms; empty if nothing."""
        if self.values:
            return f"{self.values[self.at.index(point)]:g}" if point in self.at else ""
        # A megabyte may be a little less or more in a paper than here.
        inside = 0.9 * min(self.at) <= point <= 1.1 * max(self.at)
        return f"{self.between[0]:g}-{self.between[1]:g}" if inside else ""


@cache
def papers() -> dict[str, Paper]:
    return {name: Paper(name, entry["title"], entry["link"]) for name, entry in _data()["papers"].items()}


@cache
def comparison() -> Comparison:
    entry = _data()["comparison"]
    rows = [Row(row["name"], row["way"], _by_workload(entry["workloads"], row["figures"])) for row in entry["rows"]]
    return Comparison(entry["paper"], entry["setting"], entry["workloads"], entry["baseline"], rows)


def sweep(swept: str) -> Sweep | None:
    entry = next((each for each in _data()["sweeps"] if each["swept"] == swept), None)
    return None if entry is None else Sweep(**{"values": [], "between": [], **entry})


def after(experiment: str) -> str:
    """Whose experiment it follows; empty if nobody's."""
    return str(_data()["after"].get(experiment, ""))


def remarks(experiment: str) -> list[tuple[str, str]]:
    """(paper, what it says) of figures that fit in no table."""
    return [(entry["paper"], entry["text"]) for entry in _data()["remarks"] if entry["experiment"] == experiment]


def _by_workload(workloads: list[str], pairs: list[list[float]]) -> dict[str, dict[str, float]]:
    return {name: dict(zip(FIGURES, pair, strict=True)) for name, pair in zip(workloads, pairs, strict=True) if pair}


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files("benchmarks.plots").joinpath("published.toml").read_text(encoding="utf-8"))

"""Which runs make up each experiment: what is varied, with which values. Pure; what a run measures is decided elsewhere.

All systems get the same load. Values of a sweep are far apart, because what is looked for is whether a line is flat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from godwit.bench.settings import ALL_PROTOCOLS, MICRO_BATCH, REAL_TIME, REAL_TIME_RATE, RESTART, Trigger
from godwit.control.orders import ORDERS
from godwit.errors import DefinitionError

GODWIT: Final = "godwit"
RATE: Final = 10_000  # rows a second that all systems but Spark's Python API carry on two cores
SWEPT: Final = ("live", "push")
MEGABYTE: Final = 1 << 20
STATE_MAX_BYTES: Final = 400 * MEGABYTE  # of all keys together: state per key grows, so the keys get fewer


@dataclass(frozen=True, slots=True)
class Case:
    """One run, to be repeated: `settings` are those of `Settings`, or of `PeerSettings` for other systems."""

    experiment: str
    name: str
    system: str
    way: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    swept: str | None = None
    at: float | None = None

    @property
    def trigger(self) -> Trigger:
        return REAL_TIME if self.settings.get("trigger") == REAL_TIME else MICRO_BATCH

    def told(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "case": self.name,
            "workload": "key-count",
            "system": self.system,
            "way": self.way,
            "trigger": self.trigger if self.system == GODWIT else None,  # theirs stand beside both of ours
            "swept": self.swept,
            "at": self.at,
        }


# -- E1: protocols side by side --------------------------------------------------------------------------------------


def side_by_side() -> Iterator[Case]:
    for protocol in ALL_PROTOCOLS:
        yield _ours("E1", f"key-count/{protocol}", protocol)
    for system, way in (("flink", "savepoint"), ("flink", "adaptive"), ("spark", "sql")):
        yield Case("E1", f"key-count/{system}-{way}", system, way, {"system": system, "way": way, "rate": RATE})
    for protocol in ALL_PROTOCOLS:
        yield _ours("E1", f"real-time/{protocol}", protocol, trigger=REAL_TIME, rate=REAL_TIME_RATE)


# -- E2: sweeps ------------------------------------------------------------------------------------------------------


def sweeps() -> Iterator[Case]:
    for protocol in SWEPT:
        for size in (1_024, 16 << 10, 256 << 10, MEGABYTE, 10 * MEGABYTE):
            keys = min(10_000, max(8, STATE_MAX_BYTES // size))
            yield _swept(protocol, "state_bytes", size, state_bytes=size, keys=keys)
        for moved in (100, 1_000, 10_000, 100_000):
            yield _swept(protocol, "keys_moved", moved, keys=2 * moved)
        for rate in (2_000, 10_000, 30_000):
            yield _swept(protocol, "rate", rate, rate=rate)
        for skew in (0.0, 0.5, 1.0, 1.5):
            yield _swept(protocol, "skew", skew, skew=skew)
        for hosts in (2, 4, 6):
            yield _swept(protocol, "hosts", hosts, hosts=hosts)


def _swept(protocol: str, name: str, at: float, **settings: Any) -> Case:
    return _ours("E2", f"{name}={at:.10g}/{protocol}", protocol, swept=name, at=at, **settings)


# -- E4: the order in which keys go ----------------------------------------------------------------------------------


def orders() -> Iterator[Case]:
    for skew, load in ((0.0, "uniform"), (1.0, "zipf")):
        for order in ORDERS:
            yield _ours("E4", f"{load}/{order}", "pause", order=order, skew=skew)
        yield _ours("E4", f"{load}/push", "push", skew=skew)


# -- all -------------------------------------------------------------------------------------------------------------


def _ours(
    experiment: str, name: str, protocol: str, swept: str | None = None, at: float | None = None, **settings: Any
) -> Case:
    return Case(experiment, name, GODWIT, protocol, {"protocol": protocol, "rate": RATE, **settings}, swept, at)


EXPERIMENTS: Final = {"E1": side_by_side, "E2": sweeps, "E4": orders}
QUICK: Final = {"warm_up_s": 3.0, "steady_s": 4.0, "after_s": 4.0}
QUICK_KEYS: Final = 1_000
QUICK_WAYS: Final = ("live", "pause", RESTART, "sql")


def cases(names: Sequence[str], only: str = "", quick: bool = False) -> list[Case]:
    """The runs of these experiments, or those of them with all these texts in their names; `quick`: a few short ones."""
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise DefinitionError(
            f"there is no experiment {', '.join(unknown)}", todo=f"Choose of {', '.join(EXPERIMENTS)}"
        )
    found = [
        case
        for name in names or EXPERIMENTS
        for case in EXPERIMENTS[name]()
        if all(text in case.name for text in only.split(","))
    ]
    if not found:
        raise DefinitionError(f"no run of these experiments has {only!r} in its name")
    return [_shortened(case) for case in found if _among_quick(case)] if quick else found


def _among_quick(case: Case) -> bool:
    return case.experiment == "E1" and case.way in QUICK_WAYS and case.trigger != REAL_TIME


def _shortened(case: Case) -> Case:
    shorter = {**case.settings, **QUICK, "keys": QUICK_KEYS}
    return Case(case.experiment, case.name, case.system, case.way, shorter, case.swept, case.at)

"""Lines like those of a full evaluation, the same ones every time, with about what a small machine gives."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from typing import Any

from benchmarks.report import Evaluation, read

# About what a small machine gives: peak jitter and disruption in ms, reconfiguration in s.
MAGNITUDES = {
    ("godwit", "live"): (18.0, 0.0, 0.42),
    ("godwit", "live-unordered"): (12.0, 0.0, 0.40),
    ("godwit", "standby"): (25.0, 0.0, 0.08),
    ("godwit", "push"): (70.0, 40.0, 0.49),
    ("godwit", "fetch"): (120.0, 160.0, 0.46),
    ("godwit", "pause"): (390.0, 410.0, 0.43),
    ("godwit", "restart"): (3300.0, 3900.0, 1.65),
    ("flink", "adaptive"): (780.0, 1200.0, 1.1),
    ("flink", "savepoint"): (1140.0, 1400.0, 1.3),
    ("spark", "sql"): (3350.0, 6100.0, 3.1),
    ("spark", "pandas"): (7400.0, 8600.0, 6.7),
}
PHASES = {
    "live": (("copy", 0.5), ("follow", 0.4), ("cut", 0.1)),
    "live-unordered": (("copy", 0.5), ("follow", 0.4), ("cut", 0.1)),
    "standby": (("cut", 1.0),),
    "restart": (("stop", 0.1), ("move", 0.6), ("start", 0.3)),
}
STALL = (("p50", 0.3), ("p99", 0.8), ("max", 1.0))
PARTS = ("router", "wire", "gate", "processor", "ledger", "log")
SWEEPS: dict[str, tuple[float, ...]] = {
    "state_bytes": (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000),
    "keys_moved": (100, 1_000, 10_000, 100_000),
    "rate": (1_000, 5_000, 20_000, 50_000),
    "window_rows": (10, 100, 1_000, 10_000),
    "skew": (0, 0.5, 1.0, 1.5),
    "hosts": (1, 2, 4, 6),
}
RUNS = 3


def line(chance: random.Random, experiment: str, system: str, way: str, repeat: int, **told: Any) -> dict[str, Any]:
    jitter, disruption, reconfiguration = MAGNITUDES.get((system, way), (200.0, 300.0, 1.0))
    noise = chance.uniform(0.85, 1.2)
    ours = system == "godwit"
    figures = {
        "steady_mean_ms": round(chance.uniform(13, 16), 2),
        "steady_sigma_ms": round(chance.uniform(3, 5), 2),
        "steady_peak_jitter_p99_ms": round(chance.uniform(8, 12), 1),
        "peak_jitter_p99_ms": round(jitter * noise, 1),
        "disruption_ms": round(disruption * noise, 1),
        "stabilise_s": round(disruption * noise / 1000, 3),
        "reconfiguration_s": round(reconfiguration * noise, 4),
        "stall_rows": 400 if ours and way != "restart" else None,
        **{f"stall_{name}_ms": round(jitter * noise * part, 3) if ours else None for name, part in STALL},
        "bytes_moved": round(10_000_000 * noise) if ours else None,
        "rows_sent_twice": round(1_500 * noise) if ours else None,
        "extra_memory_bytes_max": round(30_000_000 * noise) if ours else None,
        "cpu_s": round(4 * noise, 2),
        "keys": 10_000,
        "state_bytes": 1_024,
        "keys_moved": 5_025,
        "hosts": 2,
        "rate_rows_per_s": 1_500,
        "rows": chance.randrange(20_000, 30_000),
        **dict.fromkeys(("lost", "duplicated", "out_of_order", "wrong_state"), 0),
    }
    return {
        "benchmark": "evaluation",
        "run": "20261115T132532Z",
        "commit": "66670e8",
        "versions": {"python": "3.11.7", "godwit": "0.1.0", "pyspark": "4.3.0"},
        "machine": {"cpu": "Intel(R) Xeon(R) Processor", "cores": 2, "memory_gb": 24, "system": "Linux", "load": 0.3},
        "experiment": experiment,
        "case": f"{told.get('workload', 'key-count')}/{way}",
        "workload": "key-count",
        "system": system,
        "way": way,
        "trigger": "real-time",
        "swept": None,
        "at": None,
        "order": "batched",
        "repeat": repeat,
        **figures,
        "spans": spans(way, reconfiguration * noise) if ours else [],
        **told,
    }


def spans(way: str, whole_s: float) -> list[list[Any]]:
    found, at = [], 0.005
    for name, part in PHASES.get(way, (("copy", 0.7), ("cut", 0.3))):
        found.append([name, round(at, 4), round(at + part * whole_s, 4)])
        at += part * whole_s
    return found


def timeline(chance: random.Random, jitter: float, disruption: float) -> dict[str, Any]:
    """Silence until half of the disruption is over, then latency falls back in a line."""
    p50: list[float | None] = []
    p99: list[float | None] = []
    for index in range(200):
        after_ms = index * 100 - 5_000
        base = chance.uniform(12, 15)
        late = jitter * max(0.0, 1 - after_ms / max(2 * disruption, 200.0)) if after_ms >= 0 else 0.0
        silent = 0 < after_ms < disruption / 2
        p50.append(None if silent else round(base + late * 0.6, 1))
        p99.append(None if silent else round(base * 1.8 + late, 1))
    rows = [0 if value is None else 150 for value in p50]
    return {"step_ms": 100, "from_s": -5.0, "rows": rows, "p50_ms": p50, "p99_ms": p99, "max_ms": p99}


def full(seed: int = 4) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    made = functools.partial(line, chance)
    lines = [*side_by_side(chance), *swept(chance)]
    for (system, way), repeat in runs_of("godwit"):
        lines.append(made("E3", system, way, repeat, rows_per_s=round(chance.uniform(100_000, 113_000))))
    for order in ("sudden", "fluid", "batched", "hot-first", "by-backlog"):
        for way, at, repeat in ((w, a, r) for w in ("push", "fetch") for a in (0, 0.8, 1.5) for r in range(RUNS)):
            lines.append(made("E4", "godwit", way, repeat, order=order, swept="skew", at=at))
    for way, seconds in (("storage", 1.6), ("standby", 0.3), ("parallel", 1.1)):
        for parameter, points in {
            "segment_bytes": (1 << 20, 64 << 20),
            "state_total_bytes": (10**6, 10**8),
            None: (None,),
        }.items():
            for at, repeat in ((a, r) for a in points for r in range(RUNS)):
                recovery = round(seconds * chance.uniform(0.9, 1.3), 3)
                told = {"workload": "word-count", "swept": parameter, "at": at, "recovery_s": recovery}
                lines.append(made("E5", "godwit", way, repeat, **told))
    for system, way, rate in (("godwit", "native", 380_000), ("spark", "sql", 280_000), ("spark", "pandas", 1_000)):
        for at, repeat in ((a, r) for a in (1, 2, 4) for r in range(RUNS)):
            parts = {name: round(chance.uniform(0.2, 0.9), 3) for name in PARTS} if system == "godwit" else None
            told = {"swept": "hosts", "at": at, "rows_per_s": round(rate * at**0.4 * chance.uniform(0.9, 1.1))}
            lines.append(made("E6", system, way, repeat, microseconds_per_row=parts, **told))
    return lines


def runs_of(system: str | None = None) -> Iterator[tuple[tuple[str, str], int]]:
    ways = [way for way in MAGNITUDES if system in (None, way[0])]
    return ((way, repeat) for repeat in range(RUNS) for way in ways)


def side_by_side(chance: random.Random) -> Iterator[dict[str, Any]]:
    for workload in ("key-count", "traffic"):
        for (system, way), repeat in runs_of():
            made = line(chance, "E1", system, way, repeat, workload=workload)
            made["timeline"] = timeline(chance, made["peak_jitter_p99_ms"], made["disruption_ms"])
            yield made


def swept(chance: random.Random) -> Iterator[dict[str, Any]]:
    for parameter, points in SWEEPS.items():
        for index, at in enumerate(points):
            for (system, way), repeat in runs_of("godwit"):
                made = line(chance, "E2", system, way, repeat, swept=parameter, at=at)
                made["peak_jitter_p99_ms"] *= 1.0 if way == "live" else 1.6**index
                yield made


def evaluation(lines: list[dict[str, Any]]) -> Evaluation:
    return read([json.dumps(each) for each in lines])

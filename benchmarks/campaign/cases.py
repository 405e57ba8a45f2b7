"""Which runs make up each experiment: what is varied, with which values. Pure; what a run measures is decided elsewhere.

All systems get the same load. The values of a sweep are far apart, because the question is whether a line is flat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from benchmarks.inside.names import ORDERS
from benchmarks.peers.peer_settings import KAFKA
from benchmarks.running.settings import ALL_PROTOCOLS, COUNT_WINDOW, RESTART, RESTART_MORE_S, START_S
from benchmarks.running.triggers import MICRO_BATCH, REAL_TIME, Trigger
from godwit.errors import DefinitionError
from godwit.workload import KEY_COUNT, SPEEDS, WORDS

GODWIT: Final = "godwit"
RATE: Final = 10_000  # rows a second that all systems but Spark's Python API carry on two cores
PANDAS_RATE: Final = 200  # and what that one carries: some 500 at its best, with nothing beside it
SWEPT: Final = "live"
WINDOW_ROWS_MAX: Final = (
    1_000_000  # of the open windows of all keys together: they would be too much, as larger state is
)
MEGABYTE: Final = 1 << 20
STATE_MAX_BYTES: Final = 400 * MEGABYTE  # of all keys together: state per key grows, so the keys get fewer
# Of all runs under a load, where a case has no other.
PHASES: Final = {"warm_up_s": 4.0, "steady_s": 5.0, "after_s": 5.0}
OVERHEAD_S: Final = 5.0  # of a run, beside its load: start and stop, filling state, checking
ONCE: Final = ("E2", "E3", "E4", "E6")  # unless named: along a sweep, neighbours show how far a figure can be trusted
BATCHES_S: Final = 12.0  # of a run whose length goes by batches
WAYS: Final = ("storage", "standby", "parallel", "backup")  # to get back the keys of a host that was killed
LINES_RATE: Final = 1_000  # a second, of eight words each
FAILURE_KEYS: Final = 10_000
LINK_BYTES_PER_S: Final = 2 * MEGABYTE  # between two sites: what moves takes seconds, and who waits for it shows
EVEN_ORDERS: Final = ("sudden", "batched", "by-backlog")  # no key is hot, so the others are as good as these
ALONE: Final = "one lane and one host"
AT_REST: Final = "nothing moves"
COPY: Final = "copy"
PASSING: Final = (COPY, "native")
# In real time a move gives way to rows, so it takes seconds where it takes parts of a second between micro-batches.
REAL_TIME_PHASES: Final = {"warm_up_s": 4.0, "steady_s": 5.0, "after_s": 8.0}
LONG_S: Final = 24.0  # of rows after the request, where hundreds of megabytes, or many steps, move under load
AIMED_RATE: Final = 4_000  # rows a second in real time, of which the aims speak
KAFKA_S: Final = 10.0  # of a run from Kafka to Kafka, beside its load: until a row is due, and the last commit
Kind = Literal["migration", "rest", "failure", "throughput", "peer", "passing", "rest-in-real-time"]
IN_REAL_TIME: Final = ("passing", "rest-in-real-time")  # kinds that have no other trigger


@dataclass(frozen=True, slots=True)
class Case:
    """One run, to be repeated: `settings` are those of its kind. `under` says what sets its figures apart from others."""

    experiment: str
    name: str
    system: str
    way: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    swept: str | None = None
    at: float | None = None
    given_kind: Kind | None = None
    under: str = ""
    once: bool = False

    @property
    def kind(self) -> Kind:
        """What measures it."""
        return self.given_kind or ("migration" if self.system == GODWIT else "peer")

    @property
    def about_s(self) -> float:
        """How long it takes, for those who want to know before."""
        kafka_s = KAFKA_S if self.trigger == REAL_TIME else 0.0
        if self.kind in IN_REAL_TIME:
            lasting_s = sum(self.settings.get(name, 0.0) for name in ("steady_s", "silence_s"))
            return OVERHEAD_S + START_S + kafka_s + float(lasting_s)
        if "after_s" not in self.settings:
            return BATCHES_S
        stop_s = RESTART_MORE_S if self.kind == "peer" or self.way == RESTART else 0.0
        return OVERHEAD_S + START_S + kafka_s + stop_s + float(sum(self.settings[name] for name in PHASES))

    def runs(self, asked: int) -> int:
        """How often it is repeated."""
        return 1 if self.once else asked

    @property
    def trigger(self) -> Trigger:
        """Spark's; of another system, that of our runs that get their rows in the same way and stand beside it."""
        in_real_time = self.kind in IN_REAL_TIME or self.settings.get("trigger") == REAL_TIME
        return REAL_TIME if in_real_time or self.settings.get("through") == KAFKA else MICRO_BATCH

    def labels(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "case": self.name,
            "workload": ", ".join(filter(None, [self.settings.get("workload", KEY_COUNT), self.under])),
            "system": self.system,
            "way": self.way,
            "trigger": self.trigger,
            "through": KAFKA if self.trigger == REAL_TIME else self.settings.get("through"),
            "swept": self.swept,
            "at": self.at,
        }


# -- E1: protocols side by side --------------------------------------------------------------------------------------


def side_by_side() -> Iterator[Case]:
    for workload in (KEY_COUNT, SPEEDS):
        for protocol in ALL_PROTOCOLS:
            yield _ours("E1", f"{workload}/{protocol}", protocol, workload=workload)
    for system, way, rate in (
        ("flink", "savepoint", RATE),
        ("flink", "adaptive", RATE),
        ("spark", "sql", RATE),
        ("spark", "pandas", PANDAS_RATE),
    ):
        name = f"{KEY_COUNT}/{system}-{way}" + (f"-at-{rate}" if rate != RATE else "")
        yield Case("E1", name, system, way, {"system": system, "way": way, "rate": rate})
    for protocol in ALL_PROTOCOLS:
        yield _in_real_time(_ours("E1", protocol, protocol))
    for way in ("savepoint", "adaptive"):
        settings = {"system": "flink", "way": way, "rate": AIMED_RATE, "through": KAFKA, **REAL_TIME_PHASES}
        yield Case("E1", f"real-time/flink-{way}", "flink", way, settings)


# -- E2: sweeps ------------------------------------------------------------------------------------------------------


def sweeps() -> Iterator[Case]:
    for protocol in (SWEPT, "push"):  # these two say of themselves that they are flat
        for size in (1_024, 256 << 10, 10 * MEGABYTE, 100 * MEGABYTE):
            keys = min(10_000, STATE_MAX_BYTES // size)
            yield _swept(protocol, "state_bytes", size, state_bytes=size, keys=keys)
    for moved in (100, 10_000, 100_000):
        yield _swept(SWEPT, "keys_moved", moved, keys=2 * moved)
    for rate in (2_000, 10_000, 30_000):
        yield _swept(SWEPT, "rate", rate, rate=rate)
    for rows in (10, 100, 1_000, 10_000):
        keys = min(10_000, WINDOW_ROWS_MAX // rows)
        yield _swept(SWEPT, "window_rows", rows, workload=COUNT_WINDOW, window_rows=rows, keys=keys)
    for skew in (0.0, 0.5, 1.0, 1.5):
        yield _swept(SWEPT, "skew", skew, skew=skew)
    yield _swept(SWEPT, "hosts", 1, hosts=1, target="scale-out")  # to two: there is no other to move keys to
    for hosts in (2, 4, 6):
        yield _swept(SWEPT, "hosts", hosts, hosts=hosts)
    yield from _sweeps_in_real_time()


def _sweeps_in_real_time() -> Iterator[Case]:
    for protocol in (SWEPT, "push"):
        for size, after_s in ((1_024, 8.0), (64 << 10, LONG_S), (MEGABYTE, 16.0), (10 * MEGABYTE, 8.0)):
            settings = {"state_bytes": size, "keys": min(10_000, STATE_MAX_BYTES // size)}
            yield _in_real_time(_swept(protocol, "state_bytes", size, **settings), after_s=after_s)
    for moved, after_s in ((100, 6.0), (1_000, 6.0), (10_000, 16.0), (100_000, 100.0)):
        yield _in_real_time(_swept(SWEPT, "keys_moved", moved, keys=2 * moved), after_s=after_s)
    for rate in (500, 2_000, 4_000, 8_000):
        yield _in_real_time(_swept(SWEPT, "rate", rate), rate=rate)
    for rows in (10, 100, 1_000):
        keys = min(10_000, WINDOW_ROWS_MAX // rows)
        windows = _swept(SWEPT, "window_rows", rows, workload=COUNT_WINDOW, window_rows=rows, keys=keys)
        yield _in_real_time(windows, after_s=LONG_S)
    for skew in (0.0, 1.0, 1.5):
        yield _in_real_time(_swept(SWEPT, "skew", skew, skew=skew))
    for hosts in (2, 4):  # with more, the processes of hosts have no core left on two cores
        yield _in_real_time(_swept(SWEPT, "hosts", hosts, hosts=hosts))


def _swept(protocol: str, name: str, at: float, **settings: Any) -> Case:
    return _ours("E2", f"{name}={at:.10g}/{protocol}", protocol, swept=name, at=at, **settings)


# -- E3: where the time goes, and what it costs ----------------------------------------------------------------------


def costs() -> Iterator[Case]:
    """State larger than elsewhere, so that phases have a length; and the same query while nothing moves."""
    for protocol in ALL_PROTOCOLS:
        yield _ours("E3", f"moving/{protocol}", protocol, state_bytes=10 << 10)
    for way in ("no-support", "at-rest", "standby"):
        yield Case("E3", f"rest/{way}", GODWIT, way, {"way": way}, given_kind="rest", under=AT_REST)
    for protocol in ALL_PROTOCOLS:
        yield _in_real_time(_ours("E3", f"moving/{protocol}", protocol, state_bytes=10 << 10))
    for way in ("no-support", "at-rest", "standby"):  # at the same rate: what they take for it is compared
        settings = {"way": way, "rate": AIMED_RATE, "steady_s": 15.0}
        yield Case("E3", f"real-time/rest/{way}", GODWIT, way, settings, given_kind="rest-in-real-time", under=AT_REST)


# -- E4: the order in which keys go ----------------------------------------------------------------------------------


def orders() -> Iterator[Case]:
    yield from _ordered()
    for case in _ordered():
        slow = {"after_s": LONG_S} if case.settings.get("order") == "fluid" else {}  # it moves in the most steps
        yield _in_real_time(case, **slow)


def _ordered() -> Iterator[Case]:
    for skew, load, compared in ((0.0, "uniform", EVEN_ORDERS), (1.0, "zipf", tuple(ORDERS))):
        for order in compared:
            yield _under(f"{load} load", _ours("E4", f"{load}/{order}", "pause", order=order, skew=skew))
        yield _under(f"{load} load", _ours("E4", f"{load}/push", "push", skew=skew))
        narrow: dict[str, Any] = {"link_bytes_per_s": LINK_BYTES_PER_S, "after_s": 8.0, "skew": skew}
        for protocol in ("pause", "fetch", "push", "live"):
            yield _under(f"{load} load, narrow link", _ours("E4", f"narrow-{load}/{protocol}", protocol, **narrow))


def _under(circumstance: str, case: Case) -> Case:
    return replace(case, under=circumstance)


# -- E5: a host is killed --------------------------------------------------------------------------------------------


def failures() -> Iterator[Case]:
    for way in WAYS:
        yield _killed(way)
        for size in (100, 10_000, 40_000):
            yield _killed(way, "state_total_bytes", size * FAILURE_KEYS, state_bytes=size)
    for size in (MEGABYTE, 64 * MEGABYTE):
        yield _killed("storage", "segment_bytes", size, segment_bytes=size)
    for rate in (LINES_RATE // 4, 2 * LINES_RATE):
        yield _killed("storage", "rate", rate, rate=rate)


def _killed(way: str, swept: str | None = None, at: float | None = None, **settings: Any) -> Case:
    name = f"killed/{way}" if swept is None else f"{swept}={at:.10g}/{way}"
    usual = {"way": way, "workload": WORDS, "keys": FAILURE_KEYS, "rate": LINES_RATE, "after_s": 8.0}
    return Case("E5", name, GODWIT, way, {**usual, **settings}, swept, at, "failure")


# -- E6: throughput --------------------------------------------------------------------------------------------------


def throughput() -> Iterator[Case]:
    for hosts in (1, 2, 3):
        yield _counted("native", "hosts", hosts, hosts=hosts)
    for rows in (500, 5_000, 50_000, 100_000):
        yield _counted("native", "batch_rows", rows, batch_rows=rows)
    for rows in (5_000, 100_000):
        yield _counted("sql", "batch_rows", rows, batch_rows=rows)
    yield _counted("pandas", "batch_rows", 5_000, batch_rows=5_000, warm_up=2, batches=4)  # of seconds each
    for size in (0, 1_024, 16 << 10):
        yield _counted("native", "state_bytes", size, state_bytes=size)
    for rows in (5_000, 100_000):
        alone = {"batch_rows": rows, "hosts": 1, "lanes": 1, "profile": True}
        yield replace(_counted("native", "batch_rows", rows, **alone), name=f"profile={rows}/native", under=ALONE)
    yield from _passing_in_real_time()


def _passing_in_real_time() -> Iterator[Case]:
    """Rows from Kafka to Kafka while nothing moves, beside a copy in the JVM."""
    for rate in (500, 2_000, 8_000, 16_000, 30_000):
        for way in PASSING:
            yield _passed(way, f"rate={rate}", swept="rate", at=rate, rate=rate, steady_s=15.0)
    for way in PASSING:
        quiet = _passed(way, "silence=60", rate=2_000, steady_s=10.0, silence_s=60.0)
        yield replace(quiet, under="one row after a minute of silence")
    for batch_s, steady_s, ways in ((10, 40.0, PASSING), (300, 305.0, PASSING[1:])):  # a batch, and more
        for way in ways:
            settings = {"rate": 2_000, "batch_s": float(batch_s), "steady_s": steady_s}
            yield _passed(way, f"batch_s={batch_s}", swept="batch_s", at=batch_s, **settings)


def _passed(way: str, name: str, swept: str | None = None, at: float | None = None, **settings: Any) -> Case:
    system = "spark" if way == COPY else GODWIT
    return Case("E6", f"real-time/{name}/{way}", system, way, {"way": way, **settings}, swept, at, "passing")


def _counted(way: str, swept: str, at: float, **settings: Any) -> Case:
    system = GODWIT if way == "native" else "spark"
    return Case("E6", f"{swept}={at:.10g}/{way}", system, way, {"way": way, **settings}, swept, at, "throughput")


# -- all -------------------------------------------------------------------------------------------------------------


def _ours(
    experiment: str, name: str, protocol: str, swept: str | None = None, at: float | None = None, **settings: Any
) -> Case:
    return Case(experiment, name, GODWIT, protocol, {"protocol": protocol, "rate": RATE, **settings}, swept, at)


def _in_real_time(case: Case, **settings: Any) -> Case:
    """The same from Kafka to Kafka, with the load of the aims unless another is given."""
    usual = {**REAL_TIME_PHASES, "trigger": REAL_TIME, "rate": AIMED_RATE}
    return replace(case, name=f"real-time/{case.name}", settings={**case.settings, **usual, **settings})


EXPERIMENTS: Final = {
    "E1": side_by_side,
    "E2": sweeps,
    "E3": costs,
    "E4": orders,
    "E5": failures,
    "E6": throughput,
}
QUICK: Final = {"warm_up_s": 3.0, "steady_s": 4.0, "after_s": 4.0}
QUICK_KEYS: Final = 1_000
QUICK_WAYS: Final = ("live", "pause", RESTART, "sql")
QUICK_OTHERS: Final = ("rest/at-rest", "killed/storage", "profile=5000/native")
QUICK_BATCHES: Final = {"batches": 10}


def cases(names: Sequence[str], only: str = "", quick: bool = False) -> list[Case]:
    """The runs of these experiments; `only`: with these texts in their names, or without -text; `quick`: a few short ones."""
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise DefinitionError(
            f"there is no experiment {', '.join(unknown)}", todo=f"Choose of {', '.join(EXPERIMENTS)}"
        )
    chosen = [
        _with_phases(replace(case, once=not only and (case.experiment in ONCE or case.swept is not None)))
        for name in names or EXPERIMENTS
        for case in EXPERIMENTS[name]()
        if all(_asked_for(case, text) for text in only.split(","))
    ]
    if not chosen:
        raise DefinitionError(f"no run of these experiments has {only!r} in its name")
    return [_shortened(case) for case in chosen if _among_quick(case)] if quick else chosen


def _asked_for(case: Case, text: str) -> bool:
    return text[1:] not in case.name if text.startswith("-") else text in case.name


def _with_phases(case: Case) -> Case:
    under_load = case.kind in ("migration", "failure", "peer")
    return replace(case, settings={**PHASES, **case.settings}) if under_load else case


def _among_quick(case: Case) -> bool:
    if case.experiment == "E1":
        return case.way in QUICK_WAYS and case.trigger != REAL_TIME and case.labels()["workload"] == KEY_COUNT
    return case.name in QUICK_OTHERS


def _shortened(case: Case) -> Case:
    shorter: dict[str, Any] = {**case.settings, **(QUICK if "after_s" in case.settings else QUICK_BATCHES)}
    return replace(case, settings={**shorter, "keys": QUICK_KEYS})

"""The parameters of a run, with their defaults, and which combinations make no sense. Knows nothing of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from benchmarks.inside.names import DEFAULT_ORDER, ORDERS, PROTOCOLS
from benchmarks.running.triggers import MICRO_BATCH, REAL_TIME, TRIGGERS, Trigger
from godwit.errors import DefinitionError
from godwit.workload import KEY_COUNT, SPEEDS, WORDS

RESTART: Final = "restart"
STANDBY: Final = "standby"
ALL_PROTOCOLS: Final = (*PROTOCOLS, RESTART)
Target = Literal["sideways", "scale-out"]
TARGETS: Final = get_args(Target)
REAL_TIME_RATE: Final = 1_500
COUNT_WINDOW: Final = "count-window"
WORKLOADS: Final = (KEY_COUNT, SPEEDS, COUNT_WINDOW, WORDS)
UNSET: Final = -(1 << 62)  # as the workload has it; not a number that anyone gives
# Keys of other workloads have a state of their own; words of a text are not all alike.
USUAL: Final[Mapping[str, Mapping[str, Any]]] = {KEY_COUNT: {"state_bytes": 1_024}, WORDS: {"skew": 1.0}}
STATE_BYTES_MAX: Final = 128 << 20
HOSTS_MAX: Final = 64
GROUPS: Final = 1024  # of an operator: a flock has so many unless its user says otherwise
START_S: Final = 6.0  # of rows, until the query is up and has worked off what gathered: then the warm-up begins
RESTART_MORE_S: Final = 15.0  # a restart takes all processes down: the load must last until it is over


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. `rate` None: `load` times the capacity that is measured first, which micro-batches alone have.

    `rate` counts rows of the source, which for words are lines. `window_rows` is of count-window, `window_s` of words.
    """

    workload: str = KEY_COUNT
    protocol: str = "live"
    order: str = DEFAULT_ORDER
    keys: int = 10_000
    state_bytes: int = UNSET
    skew: float = UNSET
    fraction: float = 0.5
    rate: int | None = None
    load: float = 0.5
    hosts: int = 2
    target: Target = "sideways"
    warm_up_s: float = 8.0
    steady_s: float = 10.0
    after_s: float = 12.0
    trigger: Trigger = MICRO_BATCH
    trigger_ms: int = 0
    window_rows: int = 100
    window_s: float = 5.0
    link_bytes_per_s: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """What was not given is as the workload has it, so that results tell what was run."""
        for name in ("state_bytes", "skew"):
            if getattr(self, name) == UNSET:
                object.__setattr__(self, name, USUAL.get(self.workload, {}).get(name, 0))

    def checked(self) -> Settings:
        for name, good, allowed in (
            ("workload", self.workload in WORKLOADS, f"one of {', '.join(WORKLOADS)}"),
            ("protocol", self.protocol in ALL_PROTOCOLS, f"one of {', '.join(ALL_PROTOCOLS)}"),
            ("order", self.order in ORDERS, f"one of {', '.join(ORDERS)}"),
            ("target", self.target in TARGETS, f"one of {', '.join(TARGETS)}"),
            ("keys", self.keys >= 1, "1 or more"),
            ("state_bytes", 0 <= self.state_bytes <= STATE_BYTES_MAX, f"0 to {STATE_BYTES_MAX}"),
            ("skew", 0 <= self.skew <= 10, "0 (even) to 10 (Zipf's exponent)"),
            ("fraction", 0 < self.fraction < 1, "between 0 and 1"),
            ("rate", self.rate is None or self.rate >= 1, "1 or more"),
            ("load", 0 < self.load <= 1, "over 0, up to 1"),
            ("link_bytes_per_s", self.link_bytes_per_s is None or self.link_bytes_per_s >= 1, "1 or more"),
            ("hosts", 1 <= self.hosts <= HOSTS_MAX, f"1 to {HOSTS_MAX}"),
            ("trigger", self.trigger in TRIGGERS, f"one of {', '.join(TRIGGERS)}"),
            ("trigger_ms", self.trigger_ms >= 0, "0 or more"),
            ("window_rows", self.window_rows >= 1, "1 or more"),
            ("window_s", self.window_s >= 0.001, "0.001 or more"),
            ("seed", self.seed >= 0, "0 or more"),
            ("seconds", min(self.warm_up_s, self.steady_s, self.after_s) > 0, "three numbers over 0"),
        ):
            if not good:
                raise DefinitionError(f"--{name.replace('_', '-')} must be {allowed}")
        self._check_fitting()
        return self

    def _check_fitting(self) -> None:
        if self.trigger == REAL_TIME and self.trigger_ms:
            raise DefinitionError("--trigger-ms is of micro-batches: in real time rows pass as they come")
        if self.trigger == REAL_TIME and self.rate is None:
            raise DefinitionError("in real time there is no capacity to take a share of", todo="Give --rate")
        if self.target == "sideways" and (self.hosts < 2 or self.fraction > 1 - 1 / self.hosts + 1e-9):
            most = 1 - 1 / self.hosts
            raise DefinitionError(
                f"with --hosts {self.hosts} at most {most:.2f} of the keys can move to the last of them",
                todo="Give more hosts, a smaller --fraction, or --target scale-out",
            )
        if self.target == "scale-out" and self.protocol == STANDBY:
            raise DefinitionError(
                "--protocol standby hands over to copies on a host that is there already", todo="Use --target sideways"
            )

    @property
    def hosts_after(self) -> int:
        """Scaling out evenly to n hosts moves 1 - hosts/n of the keys."""
        return (
            max(self.hosts + 1, round(self.hosts / (1 - self.fraction))) if self.target == "scale-out" else self.hosts
        )

    @property
    def watched_s(self) -> float:
        """How long the load goes on after the request."""
        return self.after_s + (RESTART_MORE_S if self.protocol == RESTART else 0.0)

    def quick(self) -> Settings:
        """Small enough to see in a minute that all works; figures of it mean little."""
        return replace(
            self,
            keys=min(self.keys, 1_000),
            rate=self.rate or 4_000,
            warm_up_s=min(self.warm_up_s, 4.0),
            steady_s=min(self.steady_s, 4.0),
            after_s=min(self.after_s, 5.0),
        )

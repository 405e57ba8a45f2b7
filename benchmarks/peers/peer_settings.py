"""The parameters of a run of another system, and which combinations make no sense. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.running.settings import RESTART_MORE_S, START_S
from godwit.errors import DefinitionError

WAYS: Final[Mapping[str, Sequence[str]]] = {"flink": ("savepoint", "adaptive"), "spark": ("sql", "pandas")}
BACKENDS: Final[Mapping[str, Sequence[str]]] = {"flink": ("hashmap", "rocksdb"), "spark": ("rocksdb",)}
PROCESS: Final = "process"  # the system itself makes the rows and notes when outputs arrive at its sink
KAFKA: Final = "kafka"  # rows come from a Kafka topic, and outputs go into another, as in our own runs in real time
THROUGH: Final[Mapping[str, Sequence[str]]] = {"flink": (PROCESS, KAFKA), "spark": (PROCESS,)}
PARALLELISM_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """One run: `system` changes from one parallelism to another in one of its ways, under `rate` rows a second."""

    system: str = "flink"
    way: str = "savepoint"
    backend: str = "rocksdb"
    through: str = PROCESS
    keys: int = 10_000
    state_bytes: int = 1_024
    rate: int = 10_000
    skew: float = 0.0
    parallelism: int = 1
    parallelism_after: int = 2
    checkpoint_s: float = 5.0  # Flink; Spark makes one at each batch
    warm_up_s: float = 8.0
    steady_s: float = 10.0
    after_s: float = 12.0
    seed: int = 0

    def checked(self) -> PeerSettings:
        if self.system not in WAYS:
            raise DefinitionError(f"system must be one of {', '.join(WAYS)}", system=self.system)
        ways, backends, through = WAYS[self.system], BACKENDS[self.system], THROUGH[self.system]
        for name, good, allowed in (
            ("way", self.way in ways, f"one of {', '.join(ways)}"),
            ("backend", self.backend in backends, f"one of {', '.join(backends)}"),
            ("through", self.through in through, f"one of {', '.join(through)}"),
            ("keys", self.keys >= 1, "1 or more"),
            ("state_bytes", 0 <= self.state_bytes <= 64 << 20, "0 to 67108864"),
            ("rate", self.rate >= 1, "1 or more"),
            ("skew", 0 <= self.skew <= 10, "0 to 10"),
            ("parallelism", 1 <= self.parallelism <= PARALLELISM_MAX, f"1 to {PARALLELISM_MAX}"),
            ("parallelism_after", 1 <= self.parallelism_after <= PARALLELISM_MAX, f"1 to {PARALLELISM_MAX}"),
            ("checkpoint_s", self.checkpoint_s > 0, "over 0"),
            ("seed", self.seed >= 0, "0 or more"),
            ("seconds", min(self.warm_up_s, self.steady_s, self.after_s) > 0, "three numbers over 0"),
        ):
            if not good:
                raise DefinitionError(f"{name} of {self.system} must be {allowed}")
        if self.parallelism == self.parallelism_after:
            raise DefinitionError("parallelism_after must differ from parallelism, or nothing is reconfigured")
        return self

    @property
    def watched_s(self) -> float:
        """How long the load goes on after the request: all ways take the whole job down, as our own restart does."""
        return self.after_s + RESTART_MORE_S

    @property
    def steady_from_s(self) -> float:
        """When the steady part begins, from the start of the load."""
        return START_S + self.warm_up_s

    @property
    def rows(self) -> int:
        return int(self.rate * (self.steady_from_s + self.steady_s + self.watched_s))

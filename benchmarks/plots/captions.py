"""The experiments: the question of each, and the figures that answer it. Nothing here is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from benchmarks.running.triggers import REAL_TIME

JITTER: Final = "peak_jitter_p99_ms"


@dataclass(frozen=True, slots=True)
class Experiment:
    """`columns` make its table, `drawn` its bars and sweeps; `by` is what is compared.

    `in_real_time`: more of both, of runs with the real-time trigger only.
    """

    name: str
    title: str
    shows: str
    columns: tuple[str, ...]
    drawn: tuple[str, ...]
    by: Literal["way", "order"] = "way"
    phases: bool = False  # whether it is about the phases of a migration
    in_real_time: tuple[str, ...] = ()

    def of(self, trigger: str) -> Experiment:
        """As it is for runs with this trigger."""
        if trigger != REAL_TIME or not self.in_real_time:
            return self
        more = self.in_real_time
        return replace(self, columns=(*self.columns, *more), drawn=(*self.drawn, *more), in_real_time=())

    @property
    def figures(self) -> tuple[str, ...]:
        """All that any of its runs may have."""
        return (*self.columns, *self.drawn, *self.in_real_time)


SUFFERED: Final = (JITTER, "disruption_ms", "stall_p50_ms", "stall_p99_ms", "stall_max_ms", "stabilise_s")

EXPERIMENTS: Final = (
    Experiment(
        "E1",
        "Protocols side by side",
        "Half of the keys change their owner while rows come in. What rows suffer, by protocol, and by the means that users of"
        " other systems have today, under the same load on the same machine.",
        (
            "rate_rows_per_s",
            "steady_mean_ms",
            "steady_peak_jitter_p99_ms",
            *SUFFERED,
            "reconfiguration_s",
            "re_emitted_rows",
        ),
        (JITTER, "disruption_ms", "stall_p99_ms"),
    ),
    Experiment(
        "E2",
        "What makes it harder",
        "One thing at a time is made larger: state, keys, load, windows, skew, hosts. A protocol that scales stays flat.",
        (JITTER, "disruption_ms", "stall_p99_ms", "reconfiguration_s"),
        (JITTER, "disruption_ms", "stall_p99_ms", "reconfiguration_s"),
        in_real_time=("stall_max_ms", "steady_peak_jitter_p99_ms"),
    ),
    Experiment(
        "E3",
        "Where the time goes, and what it costs",
        "The phases of a migration, and its price: bytes, memory, CPU, rows sent twice; and what a protocol costs when nothing"
        " moves: in rows a second at full speed, or in real time in processor time at a rate that all carry.",
        (
            *("reconfiguration_s", "bytes_moved", "rows_sent_twice", "extra_memory_bytes_max", "cpu_s"),
            *("rows_per_s", "rest_bytes_per_s", "rest_memory_bytes"),
        ),
        (
            *("reconfiguration_s", "bytes_moved", "extra_memory_bytes_max"),
            *("rows_per_s", "rest_bytes_per_s", "rest_memory_bytes"),
        ),
        phases=True,
        in_real_time=("cores_used", "p50_ms", "p99_ms"),
    ),
    Experiment(
        "E4",
        "The order in which keys go",
        "The same keys, moved in another order, with load spread evenly over keys and with a few hot ones.",
        SUFFERED,
        (JITTER, "stall_p99_ms", "stabilise_s"),
        by="order",
    ),
    Experiment(
        "E5",
        "A host is killed",
        "How soon its keys are served again, and what rows suffer until then: restored from storage, from a standby, in"
        " parallel on two hosts, and from a backup on another host where the disk is lost too. How much changelog there is to"
        " replay is what a checkpoint interval sets in other systems."
        " Rows of the input are lines of words.",
        ("recovery_s", JITTER, "disruption_ms", "stabilise_s"),
        ("recovery_s", JITTER, "disruption_ms"),
    ),
    Experiment(
        "E6",
        "Throughput, and the cost of a row",
        "Rows a second when nothing but the query holds them back, and where the microseconds of a row go: with one lane, one"
        " host and one window of rows on its way, so that nothing overlaps and the parts add up to the time of a batch."
        " In real time, from Kafka to Kafka: the latency of rows by rate, beside a copy by Spark without Python and state.",
        ("rows_per_s", "batch_ms"),
        ("rows_per_s", "batch_ms"),
        in_real_time=(
            *("p50_ms", "p99_ms", "max_ms", "after_silence_ms", "boundary_p99_ms"),
            *("rows_out_per_s", "cores_used"),
        ),
    ),
)

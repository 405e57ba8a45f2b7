"""What a router is given: its operator and flock, and its Spark task. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.runtime.processor.merging import Merge

Numbering = Literal["position", "content", "columns"]


@dataclass(frozen=True, slots=True)
class Route:
    """An operator and its flock, as shipped with a task.

    `routing`: the table from when the operator was defined; the routing file may have a newer one, and both may be old.
    `numbering`: how rows of a batch get their numbers: by position in the partition, by content (after a shuffle, which has
    no order of its own), or by lane and sequence columns. `partitions`: into so many lanes Spark has partitioned the input by
    key; 0: a lane is a partition of the input. `timers`: whether the operator has timers. They fire at the end of lanes that
    are made by key, otherwise at the beginning of a batch. `merge`: how several rows of a hot key become one row. `checked`:
    whether Spark has put 32 bits of each row's content behind the user's columns. `controller`: the driver's address, for
    tasks that wait for a host. `definition`: the definition of the operator; hosts refuse a router of an earlier one. `timed`:
    whether Spark has put the time of the batch behind all other columns. `real_time`: rows come one by one, and no row may wait
    for others.
    """

    operator: str
    checkpoint: str
    routing: Routing
    output_schema: pa.Schema
    key_names: tuple[str, ...]
    token: str = field(repr=False)
    null_keys: str = "error"
    event_time: str | None = None
    gather: bool = True
    numbering: Numbering = "position"
    wait_s: float = 60.0
    incarnation: str = ""
    timers: bool = False
    partitions: int = 0
    merge: Merge = ()
    checked: bool = False
    controller: str = ""
    definition: str = ""
    timed: bool = False
    real_time: bool = False

    @property
    def timers_end_lanes(self) -> bool:
        return self.timers and self.partitions > 0

    @property
    def timers_between_batches(self) -> bool:
        return self.timers and self.partitions == 0

    @property
    def timers_in_real_time(self) -> bool:
        return self.timers and self.real_time

    def of_initial_rows(self) -> Route:
        """The route for initial state: its rows have no event time, no check and no lane by key."""
        return replace(
            self, numbering="position", event_time=None, merge=(), checked=False, partitions=0, real_time=False
        )


@dataclass(frozen=True, slots=True)
class Task:
    """The Spark task: its batch and lane, and the scope if it evaluates a batch DataFrame.

    `carries`: the lane has rows or a tick, so the outputs of timers may leave through it. `attempt`: Spark's number of this
    attempt. `batch_ms`: Spark's time of the batch, if the lane has it.
    """

    request: BatchRef
    lane: str
    scope: str | None = None
    carries: bool = True
    attempt: int | None = None
    batch_ms: int | None = None

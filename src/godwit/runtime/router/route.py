"""What a router needs to know: its operator and flock, and which task it is in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.runtime.processor.merging import Merge

Numbering = Literal["position", "content", "columns"]


@dataclass(frozen=True, slots=True)
class Route:
    """An operator and its flock, as shipped with a task.

    `routing` is the table of when the operator was defined; the routing file may have a newer one, and neither need be right.
    `numbering` says what tells the rows of a batch apart when it is read again: their position in the partition, their
    content (after a shuffle, which has no order of its own), or lane and sequence columns. `timers`: whether the operator has
    any, which fire at the beginning of a batch. `merge`: how rows of a hot key become one, in batches that are begun so.
    `checked`: whether Spark has put 32 bits of each row's content behind the user's columns.
    `controller`: the driver's address, for tasks that wait for a host.
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
    merge: Merge = ()
    checked: bool = False
    controller: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """Which task this is: lane, batch, and the scope of a batch DataFrame's evaluation.

    A lane that has rows (or a tick) carries what timers put out, if it is the first to open the batch at a host. `attempt`:
    Spark's own number of this attempt.
    """

    request: BatchRef
    lane: str
    scope: str | None = None
    carries: bool = True
    attempt: int | None = None

"""Names of the product that benchmarks need and that have no public home.

`PROTOCOLS`, `ORDERS` and `DEFAULT_ORDER` are what `Flock.move` accepts, and `Migration` is what it returns. `group_of` and
`groups_in` say which host owns a key. `as_they_come` makes rows reach Python as operators get them in real time;
`ARROW_ROWS` and `WITH_JAVA` are the settings by which Spark SQL does that. The others are tools of native processors: columns
as numpy, variables beside the fixed state, timers and panes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from godwit.control.moves import groups_in
from godwit.control.step_order import DEFAULT_ORDER, ORDERS
from godwit.migration import PROTOCOLS
from godwit.runtime.processor.native import Timers
from godwit.runtime.processor.rows import Index, column, running_sum
from godwit.runtime.processor.state_columns import Packer
from godwit.spark.change.migration_handle import Migration
from godwit.spark.realtime.rows_as_they_come import ARROW_ROWS, WITH_JAVA, as_they_come
from godwit.state.codec import compile_codec
from godwit.state.keys import KeyCodec
from godwit.state.variables import Variable
from godwit.windows.aggregate import ROWS
from godwit.windows.store import PaneStore

__all__ = [
    "ARROW_ROWS",
    "DEFAULT_ORDER",
    "ORDERS",
    "PROTOCOLS",
    "ROWS",
    "WITH_JAVA",
    "Index",
    "Migration",
    "Packer",
    "PaneStore",
    "Timers",
    "Variable",
    "as_they_come",
    "column",
    "compile_codec",
    "group_of",
    "groups_in",
    "running_sum",
]


def group_of(key_type: pa.DataType, groups: int) -> Callable[[Any], int]:
    """Which of so many groups a key of this type belongs to."""
    codec = KeyCodec(pa.schema([("key", key_type)]))
    return lambda key: codec.route_hash((key,)) % groups

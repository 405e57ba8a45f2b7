"""The workload that needs no oracle: every key counts its rows, beside a value that only makes its state as large as wanted.

The value is made from the key, so that it can be checked after any number of moves, and written once, before the first row:
how large state is and how much of it changes are two things.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from godwit import Outputs, Processor, Rows, Times
from godwit.state.codec import compile_codec
from godwit.state.variables import Variable

BALLAST: Final = pa.schema([("bytes", pa.binary())])
SPARK_SEED: Final = 42  # of Spark SQL's xxhash64


class Tally(Processor):
    state = MappingProxyType({"n": pa.int64()})
    output_schema = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("due", pa.timestamp("us", tz="UTC"))])

    def __init__(self, state_bytes: int) -> None:
        self._state_bytes = state_bytes
        self.more_variables = (Variable("ballast", "value", BALLAST),) if state_bytes else ()

    def initialise(self, rows: Rows, state: Any, times: Times) -> None:
        state["n"] = 0
        if self._state_bytes:
            encode = compile_codec(BALLAST).encode
            payloads = [encode((ballast(key[0], self._state_bytes),)) for key in rows.keys]
            state.keyed.value_put_many(1, rows.keys, payloads)

    def process(self, rows: Rows, state: Any, times: Times) -> Outputs:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, count=count)


def ballast(key: int, size: int) -> bytes:
    return np.random.default_rng(key).bytes(size)


def digest(data: bytes) -> int:
    """As Spark SQL's xxhash64 of a binary column."""
    unsigned = xxhash.xxh64_intdigest(data, SPARK_SEED)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned

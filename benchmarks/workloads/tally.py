"""The processor that needs no oracle: every key counts its rows, beside a value that makes its state as large as wanted.

The value is made from the key, so that it can be checked after any number of moves. It is written once, before the first row,
so that the size of state and the amount of changed state are independent. Other processors take this value from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from benchmarks.inside.names import Variable, compile_codec
from godwit import Outputs, Processor, Rows, Times

BALLAST: Final = pa.schema([("bytes", pa.binary())])
SPARK_SEED: Final = 42  # of Spark SQL's xxhash64


class Ballasted(Processor):
    """A processor whose keys have a value that nothing reads; `own_variables` are those it has beside `state`."""

    own_variables: tuple[Variable, ...] = ()

    def __init__(self, state_bytes: int) -> None:
        self.state_bytes = state_bytes
        self.more_variables = (*self.own_variables, *self._ballast())

    def _ballast(self) -> tuple[Variable, ...]:
        return (Variable("ballast", "value", BALLAST),) if self.state_bytes else ()

    def load_up(self, rows: Rows, state: Any) -> None:
        if self.state_bytes:
            encode = compile_codec(BALLAST).encode
            payloads = [encode((ballast(number, self.state_bytes),)) for number in numbers_of(rows.keys)]
            state.keyed.value_put_many(1 + len(self.own_variables), rows.keys, payloads)


class Tally(Ballasted):
    state = MappingProxyType({"n": pa.int64()})
    output_schema = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("due", pa.timestamp("us", tz="UTC"))])

    def initialise(self, rows: Rows, state: Any, times: Times) -> None:
        state["n"] = 0
        self.load_up(rows, state)

    def process(self, rows: Rows, state: Any, times: Times) -> Outputs:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, count=count)


def numbers_of(keys: Sequence[tuple[Any, ...]]) -> list[int]:
    """The number in each key: keys are numbers, or a letter with one."""
    return [key[0] if isinstance(key[0], int) else int(key[0][1:]) for key in keys]


def ballast(key: int, size: int) -> bytes:
    return np.random.default_rng(key).bytes(size)


def digest(data: bytes) -> int:
    """As Spark SQL's xxhash64 of a binary column."""
    unsigned = xxhash.xxh64_intdigest(data, SPARK_SEED)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned

"""The rows of a lane in the order of their keys, where Spark has partitioned the input by key.

All rows of a key come together then, in an order that is the same when Spark computes the lane again: by routing hash, and
within a key by what identifies a row. A lane that is larger than `MEMORY_BYTES` goes through files, divided by routing hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pyarrow as pa

from godwit.runtime.processor.rows import Index
from godwit.state.ledger import joined

MEMORY_BYTES: Final = 256 << 20
FILE_BITS: Final = 6  # a lane beyond memory is divided into 2 ** FILE_BITS files
Identity = Callable[[pa.RecordBatch], list[Index]]


def in_key_order(
    batches: Iterable[pa.RecordBatch], identity: Identity, memory_bytes: int = MEMORY_BYTES
) -> Iterator[pa.RecordBatch]:
    """`identity`: columns by which rows of a key are ordered, the most significant first; ties stay as they came."""
    whole: list[pa.RecordBatch] = []
    size = 0
    rest = iter(batches)
    for batch in rest:
        whole.append(batch)
        size += batch.nbytes
        if size > memory_bytes:
            yield from _through_files(whole, rest, identity)
            return
    if whole:
        yield _sorted(joined(whole), identity)


def _through_files(
    first: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch], identity: Identity
) -> Iterator[pa.RecordBatch]:
    schema = first[0].schema
    with TemporaryDirectory(prefix="godwit-lane-") as directory:
        paths = [Path(directory) / f"{at}.arrow" for at in range(1 << FILE_BITS)]
        with ExitStack() as files:
            writers = [files.enter_context(pa.ipc.new_stream(str(path), schema)) for path in paths]
            while first:
                _divide(first.pop(0), writers)
            for batch in rest:
                _divide(batch, writers)
        for path in paths:
            with pa.ipc.open_stream(pa.memory_map(str(path))) as reader:
                batches = list(reader)
            path.unlink()
            if batches:
                yield _sorted(joined(batches), identity)


def _divide(batch: pa.RecordBatch, writers: list[Any]) -> None:
    """Files in the order of signed routing hashes: the sorted files, one after the other, are the sorted lane."""
    file = (_hashes(batch) >> (64 - FILE_BITS)) + (1 << (FILE_BITS - 1))
    for at in np.unique(file).tolist():
        writers[at].write_batch(batch.take(np.flatnonzero(file == at)))


def _sorted(batch: pa.RecordBatch, identity: Identity) -> pa.RecordBatch:
    return batch.take(np.lexsort([*reversed(identity(batch)), _hashes(batch)]))


def _hashes(batch: pa.RecordBatch) -> Index:
    values: Index = batch.column(batch.num_columns - 1).to_numpy()
    return values


def end_of_key(hashes: Index, end: int) -> int:
    """The next position from `end` on at which a key ends, for hashes in order."""
    if end >= len(hashes):
        return len(hashes)
    return int(np.searchsorted(hashes, hashes[end - 1], side="right"))

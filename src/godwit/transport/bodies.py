"""Messages with a body: a header and bytes, in one column of one stream.

The bytes have the form of a changelog's parts, so that what arrives can be written down as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema([pa.field("body", pa.large_binary())])


def write(writer: Any, header: bytes, body: Any = None) -> int:
    """Send a message; gives the bytes of its body."""
    if body is None:
        writer.write_metadata(header)
        return 0
    data = body if isinstance(body, pa.Buffer) else pa.py_buffer(body)
    offsets = pa.py_buffer(np.array([0, data.size], np.int64).tobytes())
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])
    writer.write_with_metadata(pa.RecordBatch.from_arrays([column], schema=SCHEMA), header)
    return int(data.size)


def body_of(message: Any) -> Any:
    """The body of a message that has one, without a copy: an Arrow buffer."""
    column = message.data.column(0)
    _, ends, data = column.buffers()
    begin, end = np.frombuffer(ends, np.int64, 2, column.offset * 8).tolist()
    return data.slice(begin, end - begin)

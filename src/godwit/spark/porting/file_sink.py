"""The log of Spark's file sink, which is in the directory that the sink writes: an entry for each batch, from batch 0 on.

A batch whose number is in the log is skipped, and a log without an entry for batch 0 cannot be read. So a query whose batch 0
did not write to the sink needs a directory that no query has written, and an entry without files there.
"""

from __future__ import annotations

from typing import Final

from godwit.errors import CheckpointMismatch
from godwit.spark.checkpoint.hadoop_folder import Folder

_LOG: Final = "_spark_metadata"
_NO_FILES: Final = "v1"  # the version of the log, without a line for a file


def check_new(sink: Folder) -> None:
    """Raise if a query has written the directory."""
    first = f"{_LOG}/0"
    if sink.names() and not (sink.names(_LOG) == ["0"] and sink.read(first) == _NO_FILES):
        raise CheckpointMismatch(
            f"{sink.path} is not empty: its file sink would take the new query's batches for those that it has",
            todo="Give the file sink a new directory, and read both directories",
        )


def begin(sink: Folder) -> None:
    """Let the sink know that batch 0 had no files."""
    sink.write(f"{_LOG}/0", _NO_FILES)

"""Reads the state of an operator from another host's changelog while that host goes on writing; costs that host nothing.

Decides which files and frames make up an operator's state at a given lsn. It takes nothing over and writes nothing. Files that
a compaction removes meanwhile are found again in the manifest that names their successor.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from godwit.errors import CheckpointCorrupt, CheckpointUnusable
from godwit.state.changes import changes_schema
from godwit.state.frames import Part
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.layout import Layout
from godwit.state.manifest import newest_manifest
from godwit.state.recovery import open_reader

_TRIES: Final = 20  # a file may be compacted away while it is about to be read; that many times in a row it is not


def state_at(directory: Path, operator: str, layout: Layout, key_codec: KeyCodec, last_lsn: int) -> KeyedState:
    """All state of the operator that the log holds up to this frame, which must be written."""
    for attempt in range(_TRIES):
        try:
            return _read(directory, operator, layout, key_codec, last_lsn)
        except (CheckpointCorrupt, CheckpointUnusable):
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("the last attempt either returns or raises")


def _read(directory: Path, operator: str, layout: Layout, key_codec: KeyCodec, last_lsn: int) -> KeyedState:
    state = KeyedState(layout, key_codec)
    schema, fits = changes_schema(key_codec), True
    for part in _parts(directory, last_lsn):
        if part.info.get("op") != operator:
            continue
        match part.info["kind"]:
            case "define":  # keys of an earlier life, which has been dropped since, may have other columns
                fits = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(part.info["schema"]))).equals(schema)
            case "state" if fits:
                state.replay(pa.ipc.read_record_batch(pa.py_buffer(part.body), schema))
                state.settle()
            case "drop":
                state = KeyedState(layout, key_codec)
    return state


def _parts(directory: Path, last_lsn: int) -> Iterator[Part]:
    manifest = newest_manifest(directory)
    if manifest is None:
        return
    stored = [(directory / s.file, s.bytes) for s in (*manifest.snapshots, *manifest.segments)]
    snapshots = {directory / s.file for s in manifest.snapshots}
    own = [(directory / str(name), None) for name in manifest.own_segments(directory)]
    for path, end in (*stored, *own):
        with open_reader(path, end) as reader:
            for frame in reader.frames():
                if path not in snapshots and frame.lsn > last_lsn:
                    return
                yield from frame.parts
                if path not in snapshots and frame.lsn == last_lsn:
                    return

"""The state that a log holds up to a frame, read while its host goes on writing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from godwit.runtime.processor.spec import schema_text
from godwit.state.changelog import Changelog
from godwit.state.changes import PUT, changes_schema
from godwit.state.keys import Key, KeyCodec
from godwit.state.layout import Layout
from godwit.state.state_at_lsn import state_at
from godwit.state.variables import Variable

NUMBER = pa.schema([("number", pa.int64())])
NAMES = pa.schema([("name", pa.string()), ("place", pa.string())])
LAYOUT = Layout.first([Variable("count", "value", pa.schema([("n", pa.int64())]))])


def define(keys: pa.Schema) -> tuple[dict[str, object], bytes]:
    return {"kind": "define", "op": "a", "schema": schema_text(changes_schema(KeyCodec(keys))), "spec": {}}, b""


def stored(codec: KeyCodec, key: Key, batch: int) -> tuple[dict[str, object], bytes]:
    columns = [*codec.to_arrow([key]), *(pa.array([v]) for v in (0, PUT, None, b"x"))]
    schema = changes_schema(codec)
    rows = pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    return {"kind": "state", "op": "a", "batch": batch}, rows.serialize().to_pybytes()


def test_state_of_an_earlier_life_whose_keys_had_other_columns_is_no_state_of_now(tmp_path: Path) -> None:
    log, recovered = Changelog.open(tmp_path / "host-0")
    assert not list(recovered.parts())
    numbers, names = KeyCodec(NUMBER), KeyCodec(NAMES)
    log.append([define(NUMBER), stored(numbers, (1,), 5)])
    log.append([({"kind": "drop", "op": "a"}, b""), define(NAMES)])
    lsn = log.append([stored(names, ("one", "here"), 0)])
    log.append([stored(names, ("two", "later"), 1)])
    log.flush(lsn + 1)
    assert list(state_at(tmp_path / "host-0", "a", LAYOUT, names, lsn).keys()) == [("one", "here")]
    log.close()

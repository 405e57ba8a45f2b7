"""Moves the entries of a table to a table of a later form of the same variable, with what they were before the batch.

Decides nothing about forms: the caller gives the conversion of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from godwit.state.change_batches import put_batches
from godwit.state.changes import COLUMN_OP, COLUMN_SUB, COLUMN_VALUE, COLUMN_VAR, Changes
from godwit.state.keys import KeyCodec
from godwit.state.table import Row, Table


def convert_table(
    old: Table, new: Table, convert: Callable[[bytes], bytes], key_codec: KeyCodec, make_room: Callable[[], None]
) -> None:
    """`new` is empty. `make_room` is called before every block of entries."""

    def converted(rows: Iterable[Row]) -> Iterator[Row]:
        return ((key, sub, convert(value or b"")) for key, sub, value in rows)

    for block in put_batches(new.var, converted(old.rows(committed=False)), key_codec):
        columns = block.columns
        keys = key_codec.from_arrow(columns[:COLUMN_VAR])
        new.stage_rows(columns[COLUMN_OP].to_numpy(), keys, columns[COLUMN_SUB], columns[COLUMN_VALUE])
        make_room()
        new.prepare(Changes())()
    new.settle()
    touched = list(old.touched())
    new.amend(touched, converted(old.rows_of(touched, committed=True)))

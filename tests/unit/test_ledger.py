"""The memory of the batch in progress: what was applied is answered again, not applied again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.errors import NotReplayable
from godwit.state.ledger import TIMER_ROW, Entry, Ledger, in_row_order, with_rows

OUTPUT = pa.schema([("n", pa.int64())])


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def outputs(rows: list[int], values: list[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(rows, pa.int64()), pa.array(values, pa.int64())], schema=with_rows(OUTPUT))


def ledger_with(*chunks: tuple[list[int], list[int]]) -> Ledger:
    ledger = Ledger(OUTPUT)
    for rows, hashes in chunks:
        ledger.record("0", Entry(ints(*rows), ints(*hashes), outputs(rows, [row * 10 for row in rows])))
    return ledger


def test_rows_after_all_that_was_applied_are_new() -> None:
    assert ledger_with(([0, 1, 2], [7, 8, 7])).unseen("0", ints(3, 4), ints(7, 7)) is None


def test_rows_of_another_lane_are_new() -> None:
    assert ledger_with(([0, 1], [7, 8])).unseen("1", ints(0, 1), ints(7, 8)) is None


def test_applied_rows_are_told_from_new_ones_whatever_the_chunks() -> None:
    ledger = ledger_with(([0, 2], [7, 7]), ([5], [7]))
    unseen = ledger.unseen("0", ints(0, 1, 2, 3, 5, 6), ints(7, 8, 7, 8, 7, 8))
    assert unseen is not None
    assert unseen.tolist() == [False, True, False, True, False, True]


def test_outputs_of_applied_rows_are_given_again() -> None:
    ledger = ledger_with(([0, 2], [7, 7]), ([5], [7]))
    given = in_row_order(ledger.recorded("0", ints(2, 5)))
    assert given.column("n").to_pylist() == [20, 50]


def test_a_row_that_comes_again_with_another_key_is_refused() -> None:
    with pytest.raises(NotReplayable, match="another key") as refused:
        ledger_with(([0, 1], [7, 8])).unseen("0", ints(0, 1), ints(7, 9))
    assert refused.value.fields == {"lane": "0", "row": 1}


def test_outputs_of_timers_belong_to_the_lane_that_opened_the_batch() -> None:
    ledger = Ledger(OUTPUT)
    ledger.record("1", Entry(ints(), ints(), outputs([TIMER_ROW + 5], [1])))
    ledger.record("1", Entry(ints(0), ints(7), outputs([0], [2])))
    assert [batch.column("n").to_pylist() for batch in ledger.timer_outputs("1")] == [[1]]
    assert ledger.timer_outputs("0") == []
    assert in_row_order(ledger.recorded("1", ints(0))).column("n").to_pylist() == [2]


def test_an_entry_survives_the_changelog() -> None:
    entry = Entry(ints(3, 4), ints(-1, 2**40), outputs([4, 4], [1, 2]))
    info, body = entry.part("op", 9, "0")
    copy = Entry.from_part(info, memoryview(body), OUTPUT)
    assert copy.rows.tolist() == [3, 4]
    assert copy.hashes.tolist() == [-1, 2**40]
    assert copy.outputs.equals(entry.outputs)
    assert (info["op"], info["batch"], info["lane"]) == ("op", 9, "0")


def test_in_row_order_keeps_outputs_of_one_row_in_their_order() -> None:
    merged = in_row_order([outputs([1, 3, 3], [10, 30, 31]), outputs([0, 2], [0, 20])])
    assert merged.column("n").to_pylist() == [0, 10, 20, 30, 31]


class TestManySmallChunks:
    """As with the real-time trigger: thousands of chunks of a few rows in one batch."""

    CHUNKS = [([3 * at, 3 * at + 1], [at % 5, at % 7]) for at in range(3_000)]

    def test_are_joined_to_few(self) -> None:
        ledger = ledger_with(*self.CHUNKS)
        assert ledger.row_count == 6_000
        assert len(ledger.lanes["0"]) < 20

    def test_rows_are_known_and_answered_as_they_were_one_by_one(self) -> None:
        ledger = ledger_with(*self.CHUNKS)
        unseen = ledger.unseen("0", ints(0, 1, 2, 4_500, 4_502), ints(0, 0, 0, 0, 0))
        assert unseen is not None
        assert unseen.tolist() == [False, False, True, False, True]
        assert in_row_order(ledger.recorded("0", ints(1, 4_500))).column("n").to_pylist() == [10, 45_000]

    def test_those_of_a_key_are_handed_over_and_forgotten(self) -> None:
        ledger = ledger_with(*self.CHUNKS)
        expected = [row for rows, hashes in self.CHUNKS for row, key in zip(rows, hashes, strict=True) if key == 3]
        given = [row for _, entry in ledger.of(lambda hashes: hashes == 3) for row in entry.rows.tolist()]
        assert given == expected
        ledger.drop(lambda hashes: hashes == 3)
        assert ledger.row_count == 6_000 - len(expected)

    def test_rows_that_come_between_others_stay_apart(self) -> None:
        ledger = ledger_with(([0, 4], [7, 7]), ([1, 2], [7, 7]))
        assert [entry.rows.tolist() for entry in ledger.lanes["0"]] == [[0, 4], [1, 2]]


def test_rows_are_dropped_slice_by_slice_while_other_rows_are_recorded() -> None:
    """Small entries are joined meanwhile, also with entries of which nothing has been dropped yet."""
    for slices_before in range(8):
        ledger = ledger_with(*[([2 * n, 2 * n + 1], [3, 4]) for n in range(0, 2_000, 200)])
        dropping = ledger.dropping(lambda hashes: hashes == 3)
        for _ in range(slices_before):
            next(dropping, None)
        for n in range(5_000, 5_040):
            ledger.record("0", Entry(ints(n), ints(4), outputs([n], [1])))
            next(dropping, None)
        for _ in dropping:
            pass
        assert not any((entry.hashes == 3).any() for _, entry in ledger.entries())
        assert ledger.row_count == 10 + 40


def test_entries_that_were_read_one_by_one_are_those_at_the_beginning() -> None:
    ledger = ledger_with(([0, 1], [3, 4]), ([5], [3]))
    stored = ledger.stored()
    ledger.record("0", Entry(ints(6), ints(3), outputs([6], [1])))
    rows = [row for _, each in stored for row in ledger.read(each).of(lambda hashes: hashes == 3).rows.tolist()]
    assert rows == [0, 5]

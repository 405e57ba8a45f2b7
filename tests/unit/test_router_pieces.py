"""Pieces: what of them was applied, refused, or never got an answer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from godwit.errors import InvariantBroken
from godwit.runtime.router.pieces import Finish, Piece, by_row, hashes_of, rows_of
from godwit.transport import wire

SCHEMA = pa.schema([("key", pa.string()), (wire.ROW, pa.int64()), (wire.HASH, pa.int64())])


def batch(*rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": f"k{r}", wire.ROW: r, wire.HASH: r * 10} for r in rows], SCHEMA)


def refusal(*rows: int) -> dict:
    return {"refused": {"rows": list(rows), "groups": [[1, "b", 2]], "keys": [[70, None, None]]}}


def test_note_tells_lane_what_was_seen_and_whether_it_goes_round() -> None:
    note = wire.unpack(Piece("a", "3", batch(1), again=True).note(5), "rows")
    assert (note["lane"], note["seen"], note["again"]) == ("3", 5, True)
    assert wire.unpack(Piece("a", "3", batch(1)).note(0), "rows")["again"] is False


def test_refused_rows_are_found_by_their_numbers() -> None:
    piece = Piece("a", "0", batch(4, 7, 9))
    piece.answer(refusal(9, 4), None)
    assert piece.answered
    assert piece.refused is not None
    assert rows_of(piece.refused).tolist() == [4, 9]
    assert piece.refused.column(0).to_pylist() == ["k4", "k9"]
    assert (piece.groups, piece.keys) == ([[1, "b", 2]], [[70, None, None]])
    assert [h.tolist() for h in piece.unapplied_hashes()] == [[40, 90]]


@pytest.mark.parametrize("rows", [(5,), (10,), (0,), (4, 8)])
def test_refusal_of_rows_that_were_never_sent_is_a_bug(rows: tuple[int, ...]) -> None:
    with pytest.raises(InvariantBroken, match="not sent to it"):
        Piece("a", "0", batch(4, 7, 9)).answer(refusal(*rows), None)


def test_answer_without_refusal_leaves_nothing_over() -> None:
    for header in ({}, {"refused": {"rows": [], "groups": [], "keys": []}}):
        piece = Piece("a", "0", batch(4, 7))
        piece.answer(header, None)
        assert piece.refused is None
        assert piece.unapplied_hashes() == []


def test_rows_held_back_are_not_sent_and_not_lost() -> None:
    piece = Piece("a", "0", batch(4, 7, 9))
    piece.hold_back(np.array([70, 80]))
    assert rows_of(piece.batch).tolist() == [4, 9]
    piece.answer(refusal(9), None)
    assert sorted(np.concatenate(piece.unapplied_hashes()).tolist()) == [70, 90]
    assert [rows_of(part).tolist() for part in piece.unsent] == [[7]]


def test_rows_that_go_round_are_never_held_back() -> None:
    piece = Piece("a", "0", batch(4, 7), again=True)
    piece.hold_back(np.array([40, 70]))
    assert rows_of(piece.batch).tolist() == [4, 7]
    assert piece.unsent == []


def test_piece_without_an_answer_is_given_back_whole() -> None:
    piece = Piece("a", "0", batch(4, 7, 9))
    piece.hold_back(np.array([70]))
    piece.give_up()
    assert piece.answered
    assert rows_of(by_row(piece.unsent)).tolist() == [4, 7, 9]


def test_rows_of_several_pieces_are_put_in_order() -> None:
    whole = by_row([batch(3, 8), batch(1, 5)])
    assert rows_of(whole).tolist() == [1, 3, 5, 8]
    assert hashes_of(whole).tolist() == [10, 30, 50, 80]


def test_finish_hears_of_further_hosts() -> None:
    for header, also in (({"also": ["b"]}, ["b"]), ({}, ()), ({"also": None}, ())):
        message = Finish(b"note")
        message.answer(header)
        assert message.answered
        assert message.also == also

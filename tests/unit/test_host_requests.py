"""Requests to one host: which of their rows were applied, refused, or never got an answer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from godwit.errors import InvariantBroken
from godwit.runtime.messages import ApplyRows, FinishLane, LaneFinished, OwnerHint, RefusedRows, RowsApplied
from godwit.runtime.router.host_requests import FinishRequest, RowsRequest, by_row, hashes_of, rows_of
from godwit.transport import wire

SCHEMA = pa.schema([("key", pa.string()), (wire.ROW, pa.int64()), (wire.HASH, pa.int64())])


def batch(*rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": f"k{r}", wire.ROW: r, wire.HASH: r * 10} for r in rows], SCHEMA)


def refusal(*rows: int) -> RowsApplied:
    return RowsApplied(1, RefusedRows(list(rows), (OwnerHint(1, "b", 2),), (OwnerHint(70, None, None),)))


def test_message_names_lane_answers_seen_and_whether_the_rows_were_refused_before() -> None:
    assert RowsRequest("a", "3", batch(1), again=True).message(5) == ApplyRows("3", 5, True)
    assert RowsRequest("a", "3", batch(1)).message(0) == ApplyRows("3")


def test_refused_rows_are_found_by_their_numbers() -> None:
    request = RowsRequest("a", "0", batch(4, 7, 9))
    request.answer(refusal(9, 4), None)
    assert request.answered
    assert request.refused is not None
    assert rows_of(request.refused).tolist() == [4, 9]
    assert request.refused.column(0).to_pylist() == ["k4", "k9"]
    assert (request.groups, request.keys) == (((1, "b", 2),), ((70, None, None),))
    assert [h.tolist() for h in request.unapplied_hashes()] == [[40, 90]]


@pytest.mark.parametrize("rows", [(5,), (10,), (0,), (4, 8)])
def test_refusal_of_rows_that_were_never_sent_is_a_bug(rows: tuple[int, ...]) -> None:
    with pytest.raises(InvariantBroken, match="not sent to it"):
        RowsRequest("a", "0", batch(4, 7, 9)).answer(refusal(*rows), None)


def test_answer_without_refusal_leaves_nothing_over() -> None:
    for answer in (RowsApplied(1), RowsApplied(1, RefusedRows([]))):
        request = RowsRequest("a", "0", batch(4, 7))
        request.answer(answer, None)
        assert request.refused is None
        assert request.unapplied_hashes() == []


def test_rows_held_back_are_not_sent_and_not_lost() -> None:
    request = RowsRequest("a", "0", batch(4, 7, 9))
    request.hold_back(np.array([70, 80]))
    assert rows_of(request.batch).tolist() == [4, 9]
    request.answer(refusal(9), None)
    assert sorted(np.concatenate(request.unapplied_hashes()).tolist()) == [70, 90]
    assert [rows_of(part).tolist() for part in request.unsent] == [[7]]


def test_rows_that_go_round_are_never_held_back() -> None:
    request = RowsRequest("a", "0", batch(4, 7), again=True)
    request.hold_back(np.array([40, 70]))
    assert rows_of(request.batch).tolist() == [4, 7]
    assert request.unsent == []


def test_request_without_an_answer_is_given_back_whole() -> None:
    request = RowsRequest("a", "0", batch(4, 7, 9))
    request.hold_back(np.array([70]))
    request.give_up()
    assert request.answered
    assert rows_of(by_row(request.unsent)).tolist() == [4, 7, 9]


def test_rows_of_several_requests_are_put_in_order() -> None:
    whole = by_row([batch(3, 8), batch(1, 5)])
    assert rows_of(whole).tolist() == [1, 3, 5, 8]
    assert hashes_of(whole).tolist() == [10, 30, 50, 80]


def test_finish_names_further_hosts() -> None:
    for answer, further in ((LaneFinished(("b",)), ("b",)), (LaneFinished(), ())):
        request = FinishRequest(FinishLane(0, None, 0, (), ("a",)))
        request.answer(answer)
        assert request.answered
        assert request.further_hosts == further

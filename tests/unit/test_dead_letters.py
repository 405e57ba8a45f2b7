"""Rows that a processor fails on are set aside, once and with their key; the others go on as if they were not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from godwit.errors import ProcessorFailed
from godwit.runtime.processor.dead_letters import letters_schema, rows_of_letters
from godwit.runtime.processor.spec import Operator
from godwit.runtime.reading.export import rows_of_state
from tests.property.bench_host import BenchHost, Everything, chunk_of, operator_of, request, welcome


class Picky(Everything):
    """Cannot take a row of 13, nor what a timer of key k3 asks for; both only after it has changed state."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield from super().handleInputRows(key, iter([row]), timerValues)
            if row.v == 13:
                raise ValueError("unlucky")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield from super().handleExpiredTimer(key, timerValues, expiredTimerInfo)
        if key[0] == "k3":
            raise ValueError("not k3")


def _operator(dead_letters: bool = True) -> Operator:
    operator = operator_of(Picky())
    return replace(operator, spec=replace(operator.spec, dead_letters=dead_letters))


def _letters(host: BenchHost) -> list[dict[str, Any]]:
    batches = list(host.instance.state.export(committed=False))
    return [row for table in rows_of_letters(host.instance.spec, batches, "host-0", 1) for row in table.to_pylist()]


def _state(host: BenchHost) -> dict[str, Any]:
    batches = list(host.instance.state.export(committed=False))
    tables = rows_of_state(host.instance.spec, batches, "host-0", 1)
    return {row["key"]: row for table in tables for row in table.to_pylist()}


def _said(work: Any) -> list[tuple[int, str]]:
    rows = [row for batch in work.outputs for row in batch.to_pylist()]
    return [(row["__godwit_row"], row["said"]) for row in rows]


ROWS = [(f"k{v % 5}", v) for v in range(40)]
GOOD = [(key, v) for key, v in ROWS if v != 13]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[BenchHost]:
    found = BenchHost(tmp_path / "picky", _operator())
    found.do(lambda i: i.open(request(0), "0", 1_000, welcome))
    yield found
    found.close()


def _without(tmp_path: Path) -> BenchHost:
    """A host that has only ever seen rows that can be taken, under the numbers they have among all."""
    host = BenchHost(tmp_path / "good", _operator(dead_letters=False))
    host.do(lambda i: i.open(request(0), "0", 1_000, welcome))
    return host


def test_rows_that_fail_are_set_aside_and_the_others_are_applied(host: BenchHost, tmp_path: Path) -> None:
    work = host.do(lambda i: i.apply(request(0), "0", chunk_of(ROWS)))
    reference = _without(tmp_path)
    first = reference.do(lambda i: i.apply(request(0), "0", chunk_of(ROWS[:13])))
    then = reference.do(lambda i: i.apply(request(0), "0", chunk_of(ROWS[14:], first=14)))
    # Rows of a key are called together where they can be, so their outputs leave after the last of them.
    assert sorted(text for _, text in _said(work)) == sorted(text for _, text in [*_said(first), *_said(then)])
    assert _state(host) == _state(reference)
    (letter,) = _letters(host)
    assert (letter["key"], letter["batch"], letter["lane"], letter["row"]) == ("k3", 0, "0", 13)
    assert (letter["kind"], letter["code"]) == ("row", "GODWIT-PROCESSOR-FAILED")
    assert "unlucky" in letter["error"]
    assert letter["data"] == '{"key": "k3", "v": 13}'
    assert host.instance.status()["dead_letters"] == 1
    reference.close()


def test_letters_are_there_once_after_a_replay_and_after_a_restart(host: BenchHost) -> None:
    for _ in range(2):
        host.do(lambda i: i.apply(request(0), "0", chunk_of(ROWS)))
    host.settle()
    again = host.restarted()
    work = again.do(lambda i: i.apply(request(0), "0", chunk_of(ROWS)))
    assert len(_said(work)) == len(GOOD)
    assert len(_letters(again)) == 1
    again.close()


def test_timer_that_fails_is_set_aside_and_removed(host: BenchHost) -> None:
    host.do(lambda i: i.apply(request(0), "0", chunk_of([("k2", 1), ("k3", 1)])))
    host.do(lambda i: i.finish(request(0), "0", 2, None))
    work = host.do(lambda i: i.open(request(1), "0", 2_000, welcome))
    assert [text for _, text in _said(work)] == ["1001!"]
    (letter,) = _letters(host)
    assert (letter["kind"], letter["key"], letter["timer_ms"], letter["row"]) == ("timer", "k3", 1_001, None)
    assert host.instance.state.due(1 << 40) == []


def test_without_the_option_the_batch_fails_and_nothing_changes(tmp_path: Path) -> None:
    host = _without(tmp_path)
    with pytest.raises(ProcessorFailed, match="unlucky"):
        host.do(lambda i: i.apply(request(0), "0", chunk_of(ROWS)))
    assert _state(host) == {}
    assert _letters(host) == []
    host.close()


def test_letters_can_be_cleared(host: BenchHost) -> None:
    host.do(lambda i: i.apply(request(0), "0", chunk_of(ROWS)))
    before = _state(host)
    with host.shared.lock:
        assert host.instance.keys.clear_letters() == 1
        assert host.instance.keys.clear_letters() == 0
    assert _letters(host) == []
    host.settle()
    again = host.restarted()
    assert (_letters(again), _state(again)) == ([], before)
    again.close()


def test_letters_move_with_their_key(host: BenchHost, tmp_path: Path) -> None:
    host.do(lambda i: i.apply(request(0), "0", chunk_of(ROWS)))
    target = BenchHost(tmp_path / "target", _operator())
    for batch in host.instance.state.export_keys([("k3",)], 1_000, 1 << 20):
        target.instance.keys.take(batch, batch.serialize(), settled=True)
    assert _letters(target) == _letters(host)
    target.close()


def test_bytes_and_instants_of_a_row_are_readable(tmp_path: Path) -> None:
    from godwit.errors import ProcessorFailed as Failed
    from godwit.runtime.processor.dead_letters import DeadLetter, _json, row_letter

    row = pa.RecordBatch.from_pylist([{"b": b"\x00\xff", "t": None, "d": 1.5}])
    letter = DeadLetter.unpack(row_letter(row, 3, "lane", 7, Failed("x", trace="deep"), 9).pack())
    assert (letter.batch, letter.row, letter.error) == (3, 7, "x\ndeep")
    assert _json(letter.data or b"") == '{"b": "AP8=", "t": null, "d": 1.5}'


def test_columns_have_names_of_their_own_beside_any_key() -> None:
    key = pa.schema(dict.fromkeys(("host", "Row"), pa.string()))
    names = letters_schema(replace(_operator().spec, key_schema=key)).names
    assert names[:7] == ["host", "Row", "host_godwit", "epoch", "kind", "batch", "lane"]
    assert names[7:9] == ["row_letter", "timer_ms"]

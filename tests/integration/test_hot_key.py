"""Merged rows against real host processes: a host is killed, a batch is read again, and a merge is declared later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import godwit
from godwit.errors import NotReplayable
from godwit.runtime.messages import GetStatus
from godwit.runtime.processor.merging import BLOCK_ROWS, Merge
from godwit.runtime.router import pace
from godwit.transport import typed
from tests.integration.nest import HASHED, OPERATOR, Nest, operator_of, route_hash

MERGE: Merge = (("n", "sum"),)
HOT = 3
ROWS = 3 * BLOCK_ROWS + 1_000


class Total(godwit.Processor):
    """The sum of a key's rows so far."""

    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("total", pa.int64())])

    def __init__(self, merges: bool) -> None:
        if merges:
            self.merge = dict(MERGE)

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        np.add.at(state["n"], rows.codes, rows.batch.column("n").to_numpy())
        return self.emit_at(rows, rows.last, total=state["n"])


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Nest(tmp_path / "godwit")
    yield nest
    nest.close()


def define(nest: Nest, merges: bool) -> None:
    """As an application does that is started with this processor."""
    nest.operator = operator_of(Total(merges), merge=MERGE if merges else ())
    nest.controller.remove(nest.operator.spec.name)
    nest.controller.add(nest.operator)


KEYS = np.where(np.arange(ROWS) % 10 < 9, HOT, np.arange(ROWS) % 400)  # nine rows in ten are of one key
NUMBERS = np.arange(ROWS) % 7


def fed(size: int) -> Iterator[pa.RecordBatch]:
    hashes = np.array([route_hash(key) for key in range(400)], np.int64)[KEYS]
    whole = pa.RecordBatch.from_arrays([pa.array(KEYS), pa.array(NUMBERS), pa.array(hashes)], schema=HASHED)
    yield from (whole.slice(at, size) for at in range(0, ROWS, size))


def truth(batches: int = 1) -> dict[int, int]:
    found: Counter[int] = Counter()
    for key, number in zip(KEYS.tolist(), NUMBERS.tolist(), strict=True):
        found[key] += batches * number
    return dict(found)


def last_totals(outputs: Sequence[dict[str, Any]]) -> dict[int, int]:
    return {row["key"]: row["total"] for row in outputs}


def applied(nest: Nest) -> int:
    total = 0
    for host in nest.routing.hosts:
        client = nest.client(host)
        total += typed.ask(client, GetStatus()).instances[0]["rows"]
        client.close()
    return total


def owner(nest: Nest) -> str:
    return nest.routing.owner(route_hash(HOT))


def test_host_of_the_hot_key_is_killed_in_mid_batch(nest: Nest) -> None:
    define(nest, merges=True)
    nest.start_all()

    def killing() -> Iterator[pa.RecordBatch]:
        for at, batch in enumerate(fed(10_000)):
            if at == 5:  # the first block is sent, and the second is being gathered
                nest.kill(owner(nest))
                nest.begin(owner(nest))
            yield batch

    first = list(nest.run(0, "0", killing(), merge=MERGE))
    assert last_totals(first) == truth()
    assert list(nest.run(0, "0", fed(7_777), merge=MERGE)) == first, "read again, and cut otherwise"
    with pytest.raises(NotReplayable, match=f"had {ROWS} rows before"):
        list(nest.run(0, "0", (batch.slice(0, 3 * BLOCK_ROWS) for batch in fed(ROWS)), merge=MERGE))
    assert nest.state(committed_batch=0) == truth()
    assert applied(nest) < 0.11 * ROWS


def test_attempt_that_stopped_half_way_is_completed_by_the_next(nest: Nest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first believes that hosts are slow and sends few rows at once; what is merged does not follow from that."""
    define(nest, merges=True)
    nest.start_all()
    monkeypatch.setitem(pace._rates, OPERATOR, 1_000.0)
    attempt = nest.run(0, "0", fed(BLOCK_ROWS // 2), merge=MERGE)
    began = [next(attempt) for _ in range(3)]
    attempt.close()
    monkeypatch.delitem(pace._rates, OPERATOR)
    again = list(nest.run(0, "0", fed(50_000), merge=MERGE))
    assert again[:3] == began
    assert last_totals(again) == truth()
    assert nest.state(committed_batch=0) == truth()


@pytest.mark.parametrize(
    "before", [pytest.param(False, id="declared"), pytest.param(True, id="taken-back", marks=pytest.mark.long)]
)
def test_merge_that_changes_counts_when_the_batch_begins_anew(nest: Nest, before: bool) -> None:
    """Part of the batch is applied when the application ends; the next application has another declaration."""
    define(nest, before)
    nest.start_all()
    attempt = nest.run(0, "0", fed(4_000), merge=MERGE if before else ())
    for _ in range(50):
        next(attempt)
    attempt.close()
    for host in nest.routing.hosts:
        nest.kill(host)

    define(nest, not before)
    nest.runs = {"run-2"}
    nest.start_all()
    merge = () if before else MERGE
    again = list(nest.run(0, "0", fed(4_000), run="run-2", merge=merge))
    assert last_totals(again) == truth()
    assert applied(nest) == ROWS if before else applied(nest) < 0.11 * ROWS
    assert nest.state(committed_batch=0) == truth()

    so_far = applied(nest)
    outputs = list(nest.run(1, "0", fed(4_000), run="run-2", merge=merge))
    assert last_totals(outputs) == truth(2)
    assert nest.state(committed_batch=1) == truth(2)
    assert applied(nest) - so_far == ROWS if before else applied(nest) - so_far < 0.11 * ROWS


def test_late_declaration_is_kept_with_the_definition(nest: Nest) -> None:
    define(nest, merges=False)
    nest.start_all()
    define(nest, merges=True)
    nest.define("host-0")
    assert replace(nest.operator.spec, merge=()).same_forms(nest.operator.spec), "state is the same either way"
    client = nest.client("host-0")
    assert typed.ask(client, GetStatus()).instances[0]["merges"] is True
    client.close()

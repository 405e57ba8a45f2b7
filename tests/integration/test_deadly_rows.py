"""A row that ends the host's process: named after the second time, or set aside, in real processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import RowKillsHost
from godwit.runtime.letters import rows_of_letters
from godwit.runtime.native import column
from tests.integration.nest import OPERATOR, Nest, operator_of, rows
from tests.spark.flocks import Count

DEADLY = 13


class Deadly(Count):
    """Ends the process at one row, with no chance to say so."""

    def process(self, rows: Any, states: Any, times: Any) -> Any:
        if (column(rows.batch, "n") == DEADLY).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().process(rows, states, times)


@contextmanager
def _restarting(nest: Nest, hosts: int) -> Iterator[list[str]]:
    """Starts hosts again as they end, as Spark does; gives their names in the order in which they ended."""
    ended: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            for host in nest.routing.hosts:
                if nest.process(host).poll() is not None and not over.is_set():
                    ended.append(host)
                    nest.start(host)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield ended
    finally:
        over.set()
        thread.join()


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    found = Nest(tmp_path, hosts=2, processor=Deadly())
    yield found
    found.close()


def test_row_that_kills_its_host_is_named_after_the_second_time(nest: Nest) -> None:
    nest.start_all()
    list(nest.run(0, "0", [rows(range(10))]))
    with _restarting(nest, 2) as ended:
        for _ in range(2):  # whoever asks again hears it at once
            with pytest.raises(RowKillsHost) as refused:
                list(nest.run(1, "0", [rows(range(10, 30))]))
            assert len(ended) == 2
    said = refused.value.fields
    assert {name: said[name] for name in ("operator", "lane", "batch", "row")} == {
        "operator": OPERATOR,
        "lane": "0",
        "batch": 1,
        "row": 3,
    }
    assert str(DEADLY % 7) in str(said["key"])
    assert nest.state(0) == {key: 2 if key < 3 else 1 for key in range(7)}, "the batch before is what counts"


def test_row_that_kills_its_host_can_be_set_aside(nest: Nest) -> None:
    operator = operator_of(Deadly(), dead_letters=True)
    nest.controller.remove(OPERATOR)
    nest.controller.add(operator)
    nest.operator = operator
    nest.start_all()
    with _restarting(nest, 2) as ended:
        given = list(nest.run(0, "0", [rows(range(30))]))
        assert len(ended) == 2
    assert sorted(row["count"] for row in given if row["key"] == DEADLY % 7) == [1, 2, 3]
    assert len(given) == 29
    letters = []
    for host in nest.routing.hosts:
        client = nest.client(host)
        changes = list(client.fetch(operator=OPERATOR, committed_batch=0)[1])
        client.close()
        for table in rows_of_letters(replace(operator.spec), changes, host, 1):
            letters += table.to_pylist()
    (letter,) = letters
    assert (letter["row"], letter["code"], letter["data"]) == (13, "GODWIT-ROW-KILLS-HOST", '{"key": 6, "n": 13}')

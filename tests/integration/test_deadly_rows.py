"""A row that ends the host's process: named after the second time, or set aside, in real processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import RowKillsHost
from godwit.runtime.messages import FetchState
from godwit.runtime.processor.dead_letters import rows_of_letters
from godwit.runtime.processor.rows import column
from godwit.state.ledger import Ledger
from godwit.transport import typed
from tests.integration.nest import OPERATOR, Nest, operator_of, rows
from tests.spark.flocks import Count

DEADLY = 13


class Deadly(Count):
    """Ends the process at one row, with no chance to say so."""

    def process(self, rows: Any, states: Any, times: Any) -> Any:
        if (column(rows.batch, "n") == DEADLY).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().process(rows, states, times)


class Hanging(Count):
    """Hangs at one row where no exception reaches it."""

    def process(self, rows: Any, states: Any, times: Any) -> Any:
        if (column(rows.batch, "n") == DEADLY).any():
            time.sleep(60.0)
        return super().process(rows, states, times)


class Saboteur(Count):
    """Lets the host fail once, after a chunk was put in line and before memory has all of it."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def process(self, rows: Any, states: Any, times: Any) -> Any:
        if (column(rows.batch, "n") == DEADLY).any() and not self.flag.exists():
            self.flag.touch()
            Ledger.record = _no_memory  # type: ignore[method-assign]  # for as long as this process lives
        return super().process(rows, states, times)


def _no_memory(*_: Any) -> None:
    raise MemoryError


@contextmanager
def _restarting(nest: Nest) -> Iterator[list[str]]:
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
    with _restarting(nest) as ended:
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


def _set_aside(nest: Nest, processor: Count | None = None) -> None:
    nest.operator = operator_of(processor or Deadly(), dead_letters=True, timeout_s=0.5)
    nest.controller.remove(OPERATOR)
    nest.controller.add(nest.operator)


def _letters(nest: Nest, committed_batch: int) -> list[dict[str, Any]]:
    letters = []
    for host in nest.routing.hosts:
        client = nest.client(host)
        changes = list(typed.fetch(client, FetchState(OPERATOR, committed_batch))[1])
        client.close()
        for table in rows_of_letters(nest.operator.spec, changes, host, 1):
            letters += table.to_pylist()
    return letters


@pytest.mark.parametrize("processor", [Deadly(), Hanging()], ids=["kills", "hangs in C"])
def test_row_that_ends_its_host_can_be_set_aside(nest: Nest, processor: Count) -> None:
    _set_aside(nest, processor)
    nest.start_all()
    with _restarting(nest) as ended:
        given = list(nest.run(0, "0", [rows(range(30))]))
        assert len(ended) == 2
    assert sorted(row["count"] for row in given if row["key"] == DEADLY % 7) == [1, 2, 3]
    assert len(given) == 29
    (letter,) = _letters(nest, 0)
    assert (letter["row"], letter["code"], letter["data"]) == (13, "GODWIT-ROW-KILLS-HOST", '{"key": 6, "n": 13}')


def test_row_that_has_the_number_of_a_deadly_one_in_a_later_run_is_applied(nest: Nest) -> None:
    """A later run may cut the batch otherwise. Before: that row was set aside, though nothing was wrong with it."""
    _set_aside(nest)
    nest.start_all()
    with _restarting(nest):
        list(nest.run(0, "0", [rows(range(30))]))
    others = [*range(DEADLY), DEADLY + 7, *range(DEADLY + 1, DEADLY + 7)]  # another row of its key is in its place
    nest.runs = {"run-2"}
    given = list(nest.run(0, "0", [rows(others)], run="run-2"))
    assert len(given) == len(others)
    assert nest.state(0) == {key: sum(n % 7 == key for n in others) for key in range(7)}
    assert _letters(nest, 0) == []


def test_host_that_fails_between_the_changelog_and_memory_ends_and_recovers(tmp_path: Path) -> None:
    nest = Nest(tmp_path / "nest", hosts=2, processor=Saboteur(tmp_path / "flag"))
    nest.start_all()
    with _restarting(nest) as ended:
        given = list(nest.run(0, "0", [rows(range(at, at + 10)) for at in range(0, 40, 10)]))
        assert len(ended) == 1, "it ended by itself"
    assert [row["n"] for row in given] == list(range(40)), "the task went on as after a lost connection"
    for key in range(7):
        counts = [row["count"] for row in given if row["key"] == key]
        assert counts == list(range(1, len(counts) + 1))
    assert nest.state(0) == {key: len([n for n in range(40) if n % 7 == key]) for key in range(7)}
    nest.close()

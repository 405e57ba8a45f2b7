"""What an origin sends leaves in the order in which it was decided, and a target takes nothing for a step that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from godwit.migration import PROTOCOLS
from tests.unit.pair import ALL, Note, Pair, after, joined, kind_is

KEYS = 2_000  # some slices
FIRST = {key: 1 for key in range(KEYS)}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with joined(tmp_path, monkeypatch) as pair:
        pair.a.put(0, *FIRST.items())
        yield pair


def released_then_cut(pair: Pair, then: Callable[[Note], bool] = lambda _: False) -> None:
    """live-unordered, up to where the origin has released everything;
    then the connection breaks, and the next one stops where `then` says."""
    pair.there = kind_is("rest")
    pair.migrate("live-unordered")
    first = pair.wait_connection(1)
    first.there.wait_stopped()
    pair.there = then
    first.break_()


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_keys_go_to_and_fro_over_the_line(pair: Pair, protocol: str) -> None:
    """The line by itself: nothing is lost, held back or broken."""
    assert pair.moved(protocol)["dropped"] == 0
    assert pair.b.put(0, (1, 1)) == [(1, 2)]
    assert pair.moved("pause", back=True)["dropped"] == 0
    assert pair.a.totals() == FIRST | {1: 2}
    assert pair.a.left_over() == pair.b.left_over() == []


def test_state_leaves_before_released_when_it_was_missing(pair: Pair) -> None:
    released_then_cut(pair)
    assert pair.wait_ended()["done"] == 1
    kinds = pair.connections[1].there.kinds()
    told = kinds[kinds.index("released") + 1 :]
    assert told.index("rest") < told.index("released") if "released" in told else "rest" in told
    assert "released" not in told[: told.index("rest")], told


def test_state_is_asked_for_once_a_connection_and_sent_once(pair: Pair) -> None:
    released_then_cut(pair)
    assert pair.wait_ended()["done"] == 1
    connection = pair.connections[1]
    assert connection.back.kinds().count("missing") == 1
    assert connection.there.kinds().count("rest") == 1


def test_a_second_copy_does_not_take_the_place_of_rows_applied_since(pair: Pair) -> None:
    """What is on the line behind the first copy arrives when the target has served, and applied rows."""
    pair.back = kind_is("served")
    released_then_cut(pair, after("rest", "released", stop=kind_is("state")))
    connection = pair.wait_connection(2)
    connection.back.wait_stopped()
    assert pair.b.put(0, (5, 10)) == [(5, 11)]
    connection.there.flow()
    pair.wait_sent()
    connection.back.flow()
    assert pair.wait_ended()["done"] == 1
    connection.there.wait_ended()
    assert pair.b.totals()[5] == 11
    assert pair.b.left_over() == []


def test_keys_that_were_missing_can_be_moved_to_the_same_host_again(pair: Pair) -> None:
    """What was announced again after the hand-over must not stand in the way of a later one."""
    pair.back = kind_is("served")
    released_then_cut(pair)
    connection = pair.wait_connection(2)
    connection.back.wait_stopped()
    pair.wait_sent()
    connection.back.flow()
    pair.back = lambda _: False
    assert pair.wait_ended()["done"] == 1
    connection.there.wait_ended()
    assert pair.moved("pause", back=True)["done"] == 1
    assert pair.moved("fetch")["done"] == 1
    assert pair.b.totals() == FIRST


def test_an_answer_of_an_older_connection_asks_for_nothing(pair: Pair) -> None:
    """`missing` was heard, and the connection broke before it was dealt with: the next one asks for itself."""
    released_then_cut(pair)
    assert pair.wait_ended()["done"] == 1
    assert pair.b.totals() == FIRST
    assert pair.b.owned() == ALL

"""How the watermark of a query comes to an operator, by what the nodes on the way make of it."""

from __future__ import annotations

from collections.abc import Callable

from godwit.spark.query_watermark import WatermarkPath

ORIGIN = WatermarkPath()


class Handed:
    """Spark's Option."""

    def __init__(self, ms: int | None) -> None:
        self._ms = ms

    def isDefined(self) -> bool:
        return self._ms is not None

    def get(self) -> int | None:
        return self._ms


class Node:
    """An operator of Spark, as far as watermarks go."""

    def __init__(self, makes: Callable[[int], int | None]) -> None:
        self._makes = makes

    def produceOutputWatermark(self, ms: int) -> Handed:
        return Handed(self._makes(ms))


JOIN = Node(lambda ms: ms - 300)
BY_PROCESSING_TIME = Node(lambda _: None)


def test_the_watermark_begins_as_that_of_the_query() -> None:
    assert ORIGIN.at(1_000) == 1_000


def test_a_join_hands_on_an_earlier_one_and_the_least_input_counts() -> None:
    joined = WatermarkPath((ORIGIN, ORIGIN), JOIN)
    assert joined.at(1_000) == 700
    assert WatermarkPath((ORIGIN, joined)).at(1_000) == 700


def test_before_the_first_rows_it_is_zero_everywhere() -> None:
    assert WatermarkPath((ORIGIN,), JOIN).at(0) == 0


def test_an_input_without_a_watermark_does_not_hold_the_others_back() -> None:
    without = WatermarkPath((ORIGIN,), BY_PROCESSING_TIME)
    assert WatermarkPath((without, ORIGIN)).at(1_000) == 1_000
    assert without.at(1_000) == 0
    assert WatermarkPath((without,), JOIN).at(1_000) == 0, "nothing is asked of a node that has no watermark"

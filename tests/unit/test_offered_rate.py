"""What comes in, told from batches: of one instance, and of several that have parts of the same batches."""

from __future__ import annotations

from itertools import pairwise

import pytest

from godwit.control.offered_rate import BATCHES_MAX, offered
from godwit.runtime.load.counters import Counters

Began = list[tuple[int, int]]  # (began at ms, rows of the batches before)


def counters(batches: Began, rows: int, first: int = 0) -> Counters:
    """`rows`: by now; `first`: the number of the first batch."""
    found = Counters(rows=rows)
    found.recent.extend((first + at, *batch) for at, batch in enumerate(batches))
    return found


def told(batches: Began, rows: int) -> float | None:
    return offered([counters(batches, rows).batches()])


def test_query_that_keeps_up_is_offered_what_it_applies() -> None:
    assert told([(0, 0), (500, 100), (1000, 200), (1500, 300), (2000, 400)], 500) == pytest.approx(200)


def test_query_that_falls_behind_is_offered_more_than_it_applies() -> None:
    """1,000 rows a second come, 500 are applied: each batch has the rows of the time that the one before took."""
    found = counters([(0, 0), (0, 0), (1000, 500), (3000, 1500), (7000, 3500)], 3600)
    assert offered([found.batches()]) == pytest.approx(1000)
    assert found.rate() == pytest.approx(500)


def test_the_first_batch_tells_nothing_of_when_its_successor_came() -> None:
    """Spark has planned it long before it comes here, while Python starts: the next one has the rows of all that time."""
    assert told([(3000, 0), (3500, 100), (4000, 800), (4500, 900)], 900) == pytest.approx(200)


def test_query_that_catches_up_is_offered_less() -> None:
    batches = [(0, 0), (8000, 8000), (12_000, 12_000), (14_000, 14_000), (15_000, 15_000)]
    assert told(batches, 15_400) == pytest.approx(500, rel=0.01)


def test_rows_of_the_last_batch_count_as_soon_as_they_tell_more() -> None:
    batches = [(0, 0), (1000, 100), (2000, 200), (3000, 300)]
    assert told(batches, 300) == pytest.approx(100)
    assert told(batches, 2300) == pytest.approx(1050), "2,100 rows in two seconds"


@pytest.mark.parametrize(
    "batches", [[], [(0, 0)], [(0, 0), (10, 5)], [(0, 0), (9, 1), (99, 2)], [(7, 0), (7, 1), (7, 2)]]
)
def test_too_few_batches_tell_nothing(batches: Began) -> None:
    assert told(batches, 10) is None


def test_instances_are_added_up_batch_by_batch() -> None:
    """Of 1,000 rows a second one applies 600 and the other 400; when a batch begins differs a little."""
    one = counters([(at * 500, at * 300) for at in range(8)], 8 * 300)
    other = counters([(at * 500 + 7, at * 200) for at in range(8)], 8 * 200)
    assert offered([one.batches(), other.batches()]) == pytest.approx(1000, rel=0.01)


def test_a_host_that_has_just_joined_hides_nothing() -> None:
    """It has half of the rows from its first batch on, and the other has half from then on."""
    starts = [0, 1000, 2000, 4000, 8000, 16_000]  # each batch takes twice as long: too many rows come
    per_batch = [0, 1000, 1000, 2000, 4000, 8000]  # 1,000 rows a second
    whole = [sum(per_batch[:at]) for at in range(len(starts))]
    alone = counters(list(zip(starts, whole, strict=True)), sum(per_batch))
    halved = [rows if at < 4 else rows // 2 for at, rows in enumerate(per_batch)]
    stayed = counters([(start, sum(halved[:at])) for at, start in enumerate(starts)], sum(halved))
    joined = counters([(8000, 0), (16_000, 2000)], 6000, first=4)
    assert offered([alone.batches()]) == pytest.approx(1000)
    assert offered([stayed.batches(), joined.batches()]) == pytest.approx(1000)


def test_only_the_last_batches_are_kept() -> None:
    many = counters([(at * 100, at * 50) for at in range(3 * BATCHES_MAX)], 3 * BATCHES_MAX * 50)
    batches = many.batches()
    assert len(batches) == BATCHES_MAX
    assert [rows for _, _, rows in batches] == [50] * BATCHES_MAX
    assert all(b[0] == a[0] + 1 for a, b in pairwise(batches))
    assert offered([batches]) == pytest.approx(500)

"""The generator: rows depend on their number alone, keys follow the law asked for, bad options are named."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.errors import DefinitionError
from godwit.workload import LINE_WORDS, ROWS_MAX, Workload
from godwit.workload.numbered_rows import due_count, keys_of, lane_batches, schema_of, words_of

START_MS = 1_700_000_000_000
# Worked out apart from the generator, with Python's whole numbers.
UNIFORM = [281, 652, 701, 387, 656, 787]
ZIPF = [4, 73, 106, 9, 75, 204]
PAYLOAD = b"\x1dz_\\\x04"


def workload(**options: object) -> Workload:
    return Workload.from_options({name: str(value) for name, value in options.items()})


def rows(of: Workload, first: int, stop: int, lane: int | None = None) -> pa.Table:
    """The rows of one lane in the order in which they come, or of all lanes by number."""
    lanes = range(of.lanes) if lane is None else [lane]
    batches = [batch for one in lanes for batch in lane_batches(of, one, first, stop, START_MS)]
    table = pa.Table.from_batches(batches, schema=schema_of(of))
    return table if lane is not None else table.sort_by("n")


def numbers(table: pa.Table) -> list[int]:
    return [int(n) for n in table.column("n").to_numpy()]


def due_us(table: pa.Table) -> list[int]:
    return [int(moment) for moment in table.column("due").cast(pa.int64()).to_numpy()]


SHAPES = [
    workload(keys=50, payload_bytes=13),
    workload(keys=50, skew=1.1, lanes=3),
    workload(keys=10**9, skew=0.8, lane_by="row"),
    workload(workload="traffic", lanes=1),
    workload(workload="word-count", keys=50, skew=1.0),
]


@pytest.mark.parametrize("of", SHAPES)
@given(cut=st.integers(0, 100))
@settings(max_examples=15, deadline=None)
def test_rows_do_not_depend_on_how_the_range_is_cut(of: Workload, cut: int) -> None:
    whole = rows(of, 0, 100)
    assert numbers(whole) == list(range(100))
    assert whole.equals(pa.concat_tables([rows(of, 0, cut), rows(of, cut, 100)]))


def test_rows_are_the_same_on_both_sides_of_an_inner_chunk_border() -> None:
    of = workload(keys=1_000, skew=1.0, lanes=1, payload_bytes=3)
    whole = rows(of, 0, 70_000)
    assert numbers(whole) == list(range(70_000))
    assert whole.slice(32_760, 20).equals(rows(of, 32_760, 32_780))


def test_large_payloads_are_cut_into_small_batches() -> None:
    of = workload(payload_bytes=20_000, lanes=1)
    batches = list(lane_batches(of, 0, 0, 1_000, START_MS))
    assert sum(batch.num_rows for batch in batches) == 1_000
    assert max(batch.nbytes for batch in batches) < 10_000_000


@pytest.mark.parametrize("lane_by", ["key", "row"])
@pytest.mark.parametrize("lanes", [1, 2, 7])
def test_each_row_comes_once_on_one_lane_by_ascending_number(lane_by: str, lanes: int) -> None:
    of = workload(keys=20, lanes=lanes, lane_by=lane_by)
    by_lane = [numbers(rows(of, 5, 505, lane)) for lane in range(lanes)]
    assert all(lane == sorted(lane) for lane in by_lane)
    assert sorted(n for lane in by_lane for n in lane) == list(range(5, 505))


def test_a_key_stays_on_one_lane_when_lanes_are_by_key() -> None:
    of = workload(keys=20, skew=1.0, lanes=4)
    by_lane = [set(rows(of, 0, 2_000, lane).column("key").to_pylist()) for lane in range(4)]
    assert sum(len(keys) for keys in by_lane) == len(set().union(*by_lane)) == 20


def test_row_n_is_on_lane_n_modulo_lanes_when_lanes_are_by_row() -> None:
    of = workload(lanes=3, lane_by="row")
    assert [numbers(rows(of, 4, 13, lane)) for lane in range(3)] == [[6, 9, 12], [4, 7, 10], [5, 8, 11]]


def test_lanes_and_pace_do_not_change_the_keys() -> None:
    one, many = workload(lanes=1, rows_per_second=5), workload(lanes=5, rows_per_second=0, lane_by="row")
    assert rows(one, 0, 300).select(["key", "n"]).equals(rows(many, 0, 300).select(["key", "n"]))


def test_the_first_keys_of_seed_zero_never_change() -> None:
    """Recorded figures stay comparable only while the same options mean the same rows."""
    first = np.arange(6, dtype=np.int64)
    assert keys_of(workload(keys=1_000), first).tolist() == UNIFORM
    assert keys_of(workload(keys=1_000, skew=1.0), first).tolist() == ZIPF
    assert rows(workload(payload_bytes=5), 0, 1).column("payload").to_pylist() == [PAYLOAD]


def test_another_seed_gives_other_rows() -> None:
    tables = [rows(workload(seed=seed, payload_bytes=8), 0, 100) for seed in (1, 2)]
    same = [a == b for a, b in zip(*(table.column("key").to_pylist() for table in tables), strict=True)]
    assert sum(same) < 5
    assert not set(tables[0].column("payload").to_pylist()) & set(tables[1].column("payload").to_pylist())


def test_uniform_keys_fill_the_whole_range_evenly() -> None:
    drawn = keys_of(workload(keys=16), np.arange(160_000, dtype=np.int64))
    counts = np.bincount(drawn, minlength=16)
    # 5 standard deviations of a binomial with p = 1/16.
    assert len(counts) == 16
    assert np.abs(counts - 10_000).max() < 5 * np.sqrt(160_000 * (1 / 16) * (15 / 16))


@pytest.mark.parametrize("skew", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("keys", [30, 300_000])
def test_skewed_keys_follow_zipfs_law(skew: float, keys: int) -> None:
    """Compared with exact weights: in the table, across its end at 4,096 ranks, and in the tail beyond."""
    drawn = keys_of(workload(keys=keys, skew=skew), np.arange(400_000, dtype=np.int64))
    assert drawn.min() >= 0
    assert drawn.max() < keys
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    edges = [edge for edge in (0, 1, 2, 5, 30, 1_000, 4_000, 4_200, 10_000, 150_000, 300_000) if edge <= keys]
    expected = np.add.reduceat(weights, edges[:-1]) / weights.sum() * len(drawn)
    found, _ = np.histogram(drawn, edges)
    assert (np.abs(found - expected) < 5 * np.sqrt(expected) + 1).all()


def test_a_single_key_gets_every_row() -> None:
    first = np.arange(100, dtype=np.int64)
    assert set(keys_of(workload(keys=1, skew=2.0), first).tolist()) == {0}
    assert set(keys_of(workload(keys=1), first).tolist()) == {0}


def test_payloads_have_the_size_asked_for_and_differ_from_row_to_row() -> None:
    payloads = rows(workload(payload_bytes=13), 0, 200).column("payload").to_pylist()
    assert {len(payload or b"") for payload in payloads} == {13}
    assert len(set(payloads)) == 200


def test_no_payload_bytes_leave_the_schema_as_it_is() -> None:
    bare, full = workload(payload_bytes=0), workload(payload_bytes=9)
    assert schema_of(bare) == schema_of(full)
    assert rows(bare, 0, 10).column("payload").null_count == 10


def test_traffic_has_ten_cars_and_speeds_from_20_to_80() -> None:
    table = rows(workload(workload="traffic"), 0, 5_000)
    speeds = np.array(table.column("speed").to_pylist())
    assert set(table.column("car").to_pylist()) == {f"C{i}" for i in range(10)}
    assert 20.0 <= speeds.min() < 21.0
    assert 79.0 < speeds.max() < 80.0
    assert abs(speeds.mean() - 50.0) < 1.5


def test_a_line_is_words_of_the_vocabulary_the_most_frequent_first() -> None:
    of = workload(workload="word-count", keys=30, skew=1.0)
    lines = [line.split(" ") for line in rows(of, 0, 2_000).column("line").to_pylist()]
    assert {len(line) for line in lines} == {LINE_WORDS}
    often = Counter(word for line in lines for word in line)
    assert set(often) == {f"w{i}" for i in range(30)}
    assert often["w0"] / often["w1"] == pytest.approx(2, rel=0.15)
    told = words_of(of, np.arange(2_000, dtype=np.int64)).tolist()
    assert [[f"w{word}" for word in line] for line in told] == lines


def test_neighbouring_lines_share_no_draws() -> None:
    first, second = words_of(workload(workload="word-count"), np.array([0, 1])).tolist()
    assert not set(first) & set(second)


def test_lines_are_dealt_to_lanes_by_their_number_alone() -> None:
    of = workload(workload="word-count", lanes=2)
    assert numbers(rows(of, 0, 9, lane=1)) == [1, 3, 5, 7]
    with pytest.raises(DefinitionError, match="lane_by must be row for workload=word-count"):
        workload(workload="word-count", lane_by="key")


@pytest.mark.parametrize("rate", [1, 3, 1_000, 7_777_777])
def test_rows_due_by_now_are_those_whose_due_time_has_come(rate: int) -> None:
    of = workload(rows_per_second=rate, lanes=1)
    due = due_us(rows(of, 0, 50))
    assert due[0] == START_MS * 1_000
    assert due == sorted(due)
    for now_us in {due[0] - 1, due[0], due[7] - 1, due[7], due[7] + 1, due[49] - 1}:
        assert due_count(of, START_MS, now_us) == sum(moment <= now_us for moment in due)


def test_no_more_rows_become_due_after_the_end() -> None:
    assert due_count(workload(rows_per_second=10, rows=25), START_MS, START_MS * 1_000 + 10**9) == 25


def test_with_no_rate_all_rows_are_due_at_the_start() -> None:
    of = workload(rows_per_second=0, rows=40)
    assert due_count(of, START_MS, 0) == 40
    assert set(due_us(rows(of, 0, 40))) == {START_MS * 1_000}


def test_the_last_possible_row_does_not_overflow() -> None:
    of = workload(rows_per_second=1_000, lanes=1)
    [moment] = due_us(rows(of, ROWS_MAX - 1, ROWS_MAX))
    assert moment == START_MS * 1_000 + (ROWS_MAX - 1) * 1_000


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("workload", "taxi", "key-count, traffic"),
        ("lane_by", "hash", "key, row"),
        ("rows_per_second", "-1", "from 0 to 1000000000"),
        ("rows_per_second", "fast", "whole number"),
        ("rows_per_batch", "0", "from 1"),
        ("keys", "0", "from 1"),
        ("keys", "1.5", "whole number"),
        ("skew", "-0.1", "from 0 (uniform) to 10"),
        ("skew", "nan", "from 0 (uniform) to 10"),
        ("payload_bytes", "99999999999", "from 0 to 16777216"),
        ("lanes", "", "from 1 to 4096"),
        ("rows", "-5", "from 0"),
        ("seed", "x", "whole number"),
        ("start", "2024-01-01", "whole number"),
        ("rows_per_sec", "10", "rows_per_second"),
    ],
)
def test_a_bad_option_is_refused_with_its_name_its_value_and_what_is_allowed(
    option: str, value: str, allowed: str
) -> None:
    with pytest.raises(DefinitionError) as refused:
        Workload.from_options({option: value})
    assert refused.value.fields == {"option": option, "value": repr(value)}
    assert option in str(refused.value)
    assert repr(value) in str(refused.value)
    assert allowed in str(refused.value)


def test_a_payload_is_refused_where_the_rows_have_none() -> None:
    with pytest.raises(DefinitionError, match="payload_bytes must be 0 for workload=traffic"):
        workload(workload="traffic", payload_bytes=100)


def test_identity_tells_apart_what_changes_rows_and_nothing_else() -> None:
    base = workload(rows=10, rows_per_batch=5).identity()
    assert workload(rows=99, rows_per_batch=7).identity() == base
    changed: list[dict[str, object]] = [
        {"workload": "traffic"},
        {"rows_per_second": 7},
        {"keys": 7},
        {"skew": 0.5},
        {"payload_bytes": 7},
        {"lanes": 7},
        {"lane_by": "row"},
        {"seed": 7},
    ]
    assert [name for one in changed for name in one] == list(base)
    assert all(workload(**one).identity() != base for one in changed)

"""The workloads of the benchmarks without Spark: what they compute, and that their checks find every kind of mistake."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import fsum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.running.settings import WORKLOADS, Settings
from benchmarks.workloads import COMPUTATIONS, computation
from benchmarks.workloads.averages import AverageSpeed, running_averages
from benchmarks.workloads.tally import Ballasted, Tally, ballast
from benchmarks.workloads.windows import FILLED_WITH, CountWindows
from benchmarks.workloads.words import DELAY_MS, WordCount
from godwit.errors import DefinitionError
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.rows import Rows, Times
from godwit.state.codec import compile_codec
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.workload import LINE_WORDS, Workload
from godwit.workload.numbered_rows import lane_batches

START_MS = 1_700_000_000_000
ROWS, BATCH, KEYS = 3_000, 250, 20
DUE = pa.timestamp("us", tz="UTC")
WORD_ROWS = pa.schema([("word", pa.string()), ("n", pa.int64()), ("due", DUE)])
EXACT = {"lost": 0, "duplicated": 0, "out_of_order": 0, "wrong_outputs": 0}
KEY_COLUMN = {"key-count": "key", "traffic": "car", "count-window": "car", "word-count": "word"}
VALUE_COLUMN = {"traffic": "average", "count-window": "mean", "word-count": "window"}


def settings_of(name: str, **more: Any) -> Settings:
    return Settings(workload=name, keys=KEYS, window_rows=7, window_s=0.5, rate=1_000, **more).checked()


def workload_of(settings: Settings) -> Workload:
    options = {**computation(settings).options(), "rows_per_second": 1_000, "rows": ROWS}
    return Workload.from_options({name: str(value) for name, value in options.items()})


class Operator:
    """A processor with its state, given chunks of rows; timers fire when the watermark has passed them."""

    def __init__(self, processor: Ballasted, schema: pa.Schema, key: str) -> None:
        self.adapter = NativeAdapter(processor, schema, [key])
        self.state = KeyedState(self.adapter.variables, KeyCodec(pa.schema([schema.field(key)])), None, None)
        self.adapter.open(self.state)
        self._key, self._latest_ms = key, 0
        self._outputs: list[pa.RecordBatch] = []

    def initialise(self, keys: list[Any]) -> None:
        batch = pa.RecordBatch.from_pydict({self._key: keys})
        rows = Rows(batch, np.arange(len(keys)), [(key,) for key in keys], np.arange(len(keys), dtype=np.int32))
        self.adapter.initialise(rows, Times(0, 0))
        self.state.commit()

    def process(self, batch: pa.RecordBatch) -> None:
        keys, codes = np.unique(np.array(batch.column(self._key).to_pylist()), return_inverse=True)
        rows = Rows(batch, np.arange(batch.num_rows), [(key,) for key in keys.tolist()], codes.astype(np.int32))
        outputs = self.adapter.process(rows, Times(0, self.watermark_ms))
        order = np.argsort(outputs.row_index, kind="stable")
        self._outputs.append(outputs.batch.take(pa.array(order)))
        self.state.commit()
        self._latest_ms = batch.column("due").cast(pa.int64()).to_numpy().max() // 1_000

    @property
    def watermark_ms(self) -> int:
        return int(self._latest_ms - DELAY_MS)

    def expire(self) -> None:
        due = self.state.due(self.watermark_ms)
        if due:
            self.adapter.expire(due, Times(0, self.watermark_ms))
            self.state.commit()

    def outputs(self) -> pa.Table:
        return pa.Table.from_batches(self._outputs)


def words_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As Spark SQL splits lines."""
    lines = zip(*(batch.column(name).to_pylist() for name in ("line", "n", "due")), strict=True)
    rows = [(word, n, due) for line, n, due in lines for word in line.split(" ")]
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), WORD_ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=WORD_ROWS)


def chunks(workload: Workload) -> Iterator[pa.RecordBatch]:
    """What comes on the lanes, batch by batch."""
    for first in range(0, ROWS, BATCH):
        for lane in range(workload.lanes):
            yield from lane_batches(workload, lane, first, first + BATCH, START_MS)


def processor_of(settings: Settings) -> Ballasted:
    size = settings.state_bytes
    match settings.workload:
        case "key-count":
            return Tally(size)
        case "traffic":
            return AverageSpeed(size)
        case "count-window":
            return CountWindows(size, settings.window_rows, settings.keys)
        case _:
            return WordCount(size, round(settings.window_s * 1_000))


def operator_of(settings: Settings) -> Operator:
    """All of the workload's rows have gone through it."""
    name, prepare = settings.workload, words_of if settings.workload == "word-count" else lambda batch: batch
    batches = [prepare(batch) for batch in chunks(workload_of(settings))]
    operator = Operator(processor_of(settings), batches[0].schema, KEY_COLUMN[name])
    if name == "count-window":
        operator.initialise([f"C{key}" for key in range(KEYS)])
    for at, batch in enumerate(batches):
        operator.process(batch)
        if at % 2:  # both lanes of a batch are through
            operator.expire()
    return operator


@pytest.fixture(scope="module", params=WORKLOADS)
def ran(request: pytest.FixtureRequest) -> tuple[Settings, pa.Table]:
    settings = settings_of(request.param)
    return settings, operator_of(settings).outputs()


def judged(settings: Settings, outputs: pa.Table) -> dict[str, int]:
    return computation(settings).judged(workload_of(settings), outputs)


# -- checks ----------------------------------------------------------------------------------------------------------


def test_a_good_run_is_exact_and_as_long_as_foretold(ran: tuple[Settings, pa.Table]) -> None:
    settings, outputs = ran
    assert judged(settings, outputs) == EXACT
    assert outputs.num_rows == computation(settings).output_count(workload_of(settings)) > 100


def test_a_row_that_is_missing_is_lost(ran: tuple[Settings, pa.Table]) -> None:
    settings, outputs = ran
    without = pa.concat_tables([outputs.slice(0, 40), outputs.slice(41)])
    assert judged(settings, without) == {**EXACT, "lost": 1}


def test_a_row_that_comes_again_is_duplicated(ran: tuple[Settings, pa.Table]) -> None:
    settings, outputs = ran
    found = judged(settings, pa.concat_tables([outputs.slice(0, 41), outputs.slice(40)]))
    assert (found["lost"], found["duplicated"]) == (0, 1)


def test_rows_of_a_key_that_change_places_are_out_of_order(ran: tuple[Settings, pa.Table]) -> None:
    settings, outputs = ran
    same = ["n", "window"] if settings.workload == "word-count" else []
    keys = outputs.column(KEY_COLUMN[settings.workload]).to_pylist()
    later = max(at for at, key in enumerate(keys) if key == keys[0] and _alike(outputs, at, same))
    order = np.arange(outputs.num_rows)
    order[[0, later]] = order[[later, 0]]
    found = judged(settings, outputs.take(pa.array(order)))
    assert found["out_of_order"] > 0
    assert {**found, "out_of_order": 0} == EXACT


def _alike(outputs: pa.Table, at: int, names: list[str]) -> bool:
    """Of the same lane and window as the first row."""
    return all(
        outputs.column(name)[at] == outputs.column(name)[0]
        if name == "window"
        else (outputs.column(name)[at].as_py() - outputs.column(name)[0].as_py()) % 2 == 0
        for name in names
    )


@pytest.mark.parametrize("name", VALUE_COLUMN)
def test_a_wrong_value_is_a_right_one_lost_and_one_in_excess(name: str) -> None:
    settings = settings_of(name)
    outputs = operator_of(settings).outputs()
    column = VALUE_COLUMN[name]
    numbers = outputs.column(column)
    whole = numbers.cast(pa.int64()) if name == "word-count" else numbers
    values = whole.to_pylist()
    values[40] += 500_000 if name == "word-count" else 1e-9
    wrong = pa.array(values, whole.type).cast(numbers.type)
    found = judged(settings, outputs.set_column(outputs.schema.get_field_index(column), column, wrong))
    assert (found["wrong_outputs"], found["lost"], found["duplicated"]) == (1, 1, 1)


def test_nothing_at_all_is_all_lost(ran: tuple[Settings, pa.Table]) -> None:
    settings, outputs = ran
    assert judged(settings, outputs.slice(0, 0)) == {**EXACT, "lost": outputs.num_rows}


# -- against plain Python --------------------------------------------------------------------------------------------


def rows_of(workload: Workload) -> list[dict[str, Any]]:
    return pa.Table.from_batches(list(chunks(workload))).to_pylist()


def test_averages_are_those_of_plain_python_to_the_last_bit() -> None:
    settings = settings_of("traffic", skew=1.2)
    given = operator_of(settings).outputs().to_pylist()
    state: dict[str, tuple[float, int]] = {}
    for row, output in zip(rows_of(workload_of(settings)), given, strict=True):
        average, n = state.get(row["car"], (0.0, 0))
        state[row["car"]] = (average * n + row["speed"]) / (n + 1), n + 1
        assert (output["car"], output["average"], output["count"], output["due"]) == (
            row["car"],
            *state[row["car"]],
            row["due"],
        )
    expected = computation(settings).expected(workload_of(settings), pa.table({}))
    assert {f"C{key}": value[:2] for key, value in expected.items()} == state


def test_running_averages_of_a_few_reports_by_hand() -> None:
    keys, speeds = np.array([1, 0, 1, 1]), np.array([10.0, 7.0, 20.0, 60.0])
    assert running_averages(keys, speeds, np.array([1, 3, 0])).tolist() == [7.0, 10.0, 15.0, 30.0]


def test_windows_by_count_are_those_of_plain_python() -> None:
    settings = settings_of("count-window")
    given = operator_of(settings).outputs().to_pylist()
    held = {f"C{key}": [FILLED_WITH] * (7 * key // KEYS) for key in range(KEYS)}
    closed: Counter[str] = Counter()
    expected = []
    for row in rows_of(workload_of(settings)):
        car = row["car"]
        held[car].append(row["speed"])
        if len(held[car]) == 7:
            expected.append({"car": car, "window": closed[car], "mean": fsum(held[car]) / 7, "due": row["due"]})
            closed[car] += 1
            held[car] = []
    assert given == expected
    state = computation(settings).expected(workload_of(settings), pa.table({}))
    assert {key: np.frombuffer(value[2]).tolist() for key, value in state.items()} == {
        int(car[1:]): speeds for car, speeds in held.items()
    }


def test_word_counts_are_those_of_plain_python() -> None:
    settings = settings_of("word-count")
    given = operator_of(settings).outputs().to_pylist()
    counts: Counter[tuple[str, int]] = Counter()
    expected = []
    for row in rows_of(workload_of(settings)):
        window = int(row["due"].timestamp() * 1_000) // 500
        for word in row["line"].split(" "):
            counts[word, window] += 1
            expected.append((word, window, counts[word, window], row["n"], row["due"]))
    found = [(o["word"], int(o["window"].timestamp() * 1_000) // 500, o["count"], o["n"], o["due"]) for o in given]
    assert found == expected
    assert len(found) == ROWS * LINE_WORDS


def test_counts_of_windows_go_when_the_watermark_passes_and_not_before() -> None:
    settings = settings_of("word-count")
    operator = operator_of(settings)
    expected = computation(settings).expected(workload_of(settings), operator.outputs())
    open_until_ms = [start // 1_000 + 500 for windows, _ in expected.values() for start in windows]
    assert min(open_until_ms) > operator.watermark_ms
    held = list(operator.state.keys())
    assert {key[0] for key in held} == {f"w{word}" for word in expected}
    found: dict[str, dict[int, int]] = defaultdict(dict)
    decode = compile_codec(operator.adapter.variables[0].schema).decode
    names = operator.adapter.variables[0].schema.names
    for word in expected:
        values = dict(zip(names, decode(operator.state.value_get(0, (f"w{word}",)) or b""), strict=True))
        found[f"w{word}"] = {values[f"start_us_{at}"]: values[f"rows_{at}"] for at in range(4) if values[f"rows_{at}"]}
    assert found == {f"w{word}": windows for word, (windows, _) in expected.items()}


@pytest.mark.parametrize("name", WORKLOADS)
def test_state_can_be_made_as_large_as_wanted(name: str) -> None:
    settings = settings_of(name, state_bytes=100)
    schema = words_of(next(chunks(workload_of(settings)))).schema if name == "word-count" else None
    operator = Operator(processor_of(settings), schema or next(chunks(workload_of(settings))).schema, KEY_COLUMN[name])
    key: Any = 3 if name == "key-count" else f"x{3}"
    operator.initialise([key])
    var = [variable.name for variable in operator.adapter.variables].index("ballast")
    kept = compile_codec(operator.adapter.variables[var].schema).decode(operator.state.value_get(var, (key,)) or b"")
    assert kept == (ballast(3, 100),)


# -- settings --------------------------------------------------------------------------------------------------------


def test_every_workload_that_settings_allow_exists() -> None:
    assert tuple(COMPUTATIONS) == WORKLOADS


def test_state_and_skew_are_as_the_workload_has_them_unless_given() -> None:
    usual = {name: (Settings(workload=name).state_bytes, Settings(workload=name).skew) for name in WORKLOADS}
    assert usual == {"key-count": (1_024, 0), "traffic": (0, 0), "count-window": (0, 0), "word-count": (0, 1.0)}
    given = Settings(workload="word-count", state_bytes=5, skew=0.0)
    assert (given.state_bytes, given.skew) == (5, 0)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"workload": "taxi"}, "--workload must be one of key-count"),
        ({"window_rows": 0}, "--window-rows must be 1 or more"),
        ({"window_s": 0.0}, "--window-s must be"),
        ({"state_bytes": -7}, "--state-bytes must be 0 to"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        Settings(**wrong).checked()

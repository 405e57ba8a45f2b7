"""`timeout_s` is for one call of the processor, not for all calls of a chunk, whatever the flavour."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import godwit
from godwit.errors import ProcessorTimeout
from godwit.model.progress import BatchRef
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.instance.instance import Instance
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.processor.watchdog import Watch
from godwit.spark.pyspark_api.call_settings import CallSettings
from godwit.spark.pyspark_api.stateful import PandasAdapter, RowAdapter, describe
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec

INPUT = pa.schema([("key", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), ("n", pa.int64())])
TIMEOUT_S = 0.5
SHORT_S = 0.05
CALLS = 20  # take twice the timeout together
HANGS = 7  # the key whose call does not end
REQUEST = BatchRef("q", "r", 0)


def work(key: int, hangs: int | None) -> None:
    for _ in itertools.count() if key == hangs else range(1):
        time.sleep(SHORT_S)


class Slow(StatefulProcessor):
    """Works for a while in every call: within the call itself, or while its outputs are asked for."""

    hangs: int | None = None
    lazy = False
    timers = False

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.seen.update((sum(1 for _ in rows),))
        if self.timers:
            for at_ms in (1, 2):
                self.handle.registerTimer(at_ms)
            return iter(())
        if self.lazy:
            return self._later(key[0])
        work(key[0], self.hangs)
        return iter((self.made(key[0]),))

    def _later(self, key: int) -> Iterator[Any]:
        work(key, self.hangs)
        yield self.made(key)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        work(key[0], self.hangs)
        yield self.made(key[0])

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        work(key[0], self.hangs)

    def made(self, key: int) -> Any:
        return Row(key=key, n=1)


class SlowFrames(Slow):
    def made(self, key: int) -> Any:
        return pd.DataFrame({"key": [key], "n": [1]})


class SlowNative(godwit.Processor):
    state = {"n": pa.int64()}
    output_schema = OUTPUT
    hangs: int | None = None

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> Any:
        state["n"] += rows.counts
        for (key,) in rows.keys:
            work(key, self.hangs)
        return self.emit(rows, n=state["n"][rows.codes])


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch(lambda error: pytest.fail(f"the host would have ended: {error}"))
    watch.start()
    yield watch
    watch.stop()


def instance_of(processor: Any, watch: Watch, **spec: Any) -> Instance:
    key_schema = pa.schema([INPUT.field("key")])
    adapter: Any
    if isinstance(processor, godwit.Processor):
        adapter, flavour = NativeAdapter(processor, INPUT, ["key"]), "native"
    else:
        kind, flavour = (PandasAdapter, "pandas") if isinstance(processor, SlowFrames) else (RowAdapter, "row")
        mode = spec.get("time_mode", "none")
        adapter = kind(processor, describe(processor, mode).variables, key_schema, OUTPUT, CallSettings(time_mode=mode))
    made_spec = OperatorSpec(
        "slow", "Slow", flavour, key_schema, OUTPUT, adapter.variables, timeout_s=TIMEOUT_S, **spec
    )
    codec = KeyCodec(key_schema, "UTC")
    instance = Instance("slow", made_spec, KeyedState(made_spec.variables, codec), codec)
    instance.attach(made_spec, adapter)
    instance.code.guard = lambda: watch.over(
        instance.spec.timeout_s, instance.code.describe, instance.code.current_call
    )
    return instance


def welcome(*_: Any) -> None:
    """Every run is the newest."""


def chunk(keys: range | list[int], first: int = 0) -> Chunk:
    rows = np.arange(first, first + len(keys), dtype=np.int64)
    return Chunk(pa.record_batch([pa.array(keys, pa.int64())], schema=INPUT), rows, np.array(keys, np.int64))


def made(flavour: Any, **attributes: Any) -> Any:
    processor = flavour()
    for name, value in attributes.items():
        setattr(processor, name, value)
    return processor


EACH = pytest.mark.parametrize("lazy", [False, True], ids=["at-once", "lazily"])
FLAVOURS = pytest.mark.parametrize("flavour", [Slow, SlowFrames], ids=["row", "pandas"])


@EACH
@FLAVOURS
def test_many_short_calls_of_a_chunk_may_take_longer_than_the_timeout(flavour: Any, lazy: bool, watch: Watch) -> None:
    instance = instance_of(made(flavour, lazy=lazy), watch)
    instance.open(REQUEST, "0", 0, welcome)
    done = instance.apply(REQUEST, "0", chunk(range(CALLS)))
    assert sum(map(len, done.outputs)) == CALLS


@EACH
@FLAVOURS
def test_one_long_call_among_short_ones_is_interrupted_and_named(flavour: Any, lazy: bool, watch: Watch) -> None:
    instance = instance_of(made(flavour, lazy=lazy, hangs=HANGS), watch)
    instance.open(REQUEST, "0", 0, welcome)
    with pytest.raises(ProcessorTimeout, match=rf"more than 0\.5 s .*key=\({HANGS},\)"):
        instance.apply(REQUEST, "0", chunk(range(CALLS)))
    assert instance.state.key_count == 0, "state is as before"


@FLAVOURS
def test_many_timers_that_are_due_may_take_longer_than_the_timeout(flavour: Any, watch: Watch) -> None:
    instance = instance_of(made(flavour, timers=True), watch, time_mode="processingTime")
    instance.open(REQUEST, "0", 1_000, welcome)
    instance.apply(REQUEST, "0", chunk(range(CALLS // 2)))
    instance.finish(REQUEST, "0", CALLS // 2, None)
    fired = instance.open(BatchRef("q", "r", 1), "0", 2_000, welcome)
    assert sum(map(len, fired.outputs)) == CALLS, "two timers a key"


@FLAVOURS
def test_one_long_timer_is_interrupted_and_named(flavour: Any, watch: Watch) -> None:
    instance = instance_of(made(flavour, timers=True, hangs=HANGS), watch, time_mode="processingTime")
    instance.open(REQUEST, "0", 1_000, welcome)
    instance.apply(REQUEST, "0", chunk(range(CALLS // 2)))
    instance.finish(REQUEST, "0", CALLS // 2, None)
    with pytest.raises(ProcessorTimeout, match=rf"key=\({HANGS},\)"):
        instance.open(BatchRef("q", "r", 1), "0", 2_000, welcome)


def test_many_rows_of_initial_state_may_take_longer_than_the_timeout(watch: Watch) -> None:
    instance = instance_of(Slow(), watch)
    given = chunk([key for key in range(CALLS // 4) for _ in range(4)])
    instance.initialise("initial", given.batch, given.rows, given.hashes, 0)
    assert instance.ledger.row_count == CALLS


def test_a_native_processor_has_the_timeout_for_every_chunk(watch: Watch) -> None:
    processor = SlowNative()
    instance = instance_of(processor, watch)
    instance.open(REQUEST, "0", 0, welcome)
    for first in range(0, CALLS, 4):
        assert len(instance.apply(REQUEST, "0", chunk(range(4), first)).outputs[0]) == 4
    processor.hangs = 2
    with pytest.raises(ProcessorTimeout, match=r"more than 0\.5 s"):
        instance.apply(REQUEST, "0", chunk(range(4), CALLS))

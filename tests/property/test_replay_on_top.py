"""A log replayed on top of a later state, from any batch on, comes to the same: what an heir does with copies of a standby."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.variables import Variable

KEYS = pa.schema([("key", pa.int64())])
BYTES = pa.schema([("bytes", pa.binary())])
VARIABLES = (
    Variable("n", "value", BYTES),
    Variable("seen", "list", BYTES),
    Variable("by", "map", BYTES, pa.schema([("k", pa.binary())])),
)
N, SEEN, BY = range(3)
CODEC = KeyCodec(KEYS)

small = st.binary(min_size=1, max_size=2)
keys = st.integers(0, 2).map(lambda key: (key,))
changes = st.one_of(
    st.tuples(st.just("value_put"), st.just(N), keys, small),
    st.tuples(st.just("value_clear"), st.just(N), keys),
    st.tuples(st.just("list_put"), st.just(SEEN), keys, st.lists(small, max_size=3)),
    st.tuples(st.just("list_append"), st.just(SEEN), keys, st.lists(small, min_size=1, max_size=2)),
    st.tuples(st.just("list_clear"), st.just(SEEN), keys),
    st.tuples(st.just("map_put"), st.just(BY), keys, small, small),
    st.tuples(st.just("map_remove"), st.just(BY), keys, small),
    st.tuples(st.just("map_clear"), st.just(BY), keys),
)


def fresh() -> KeyedState:
    return KeyedState(VARIABLES, CODEC)


def held(state: KeyedState) -> list[Any]:
    """In the order of keys; lists and maps in their own."""
    rows = [row for batch in state.export(committed=False) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["key"], row["var"]))


def logged(script: list[list[tuple[Any, ...]]]) -> list[pa.RecordBatch]:
    """What each batch of changes leaves in the log."""
    state, log = fresh(), []
    for batch in script:
        for name, *arguments in batch:
            getattr(state, name)(*arguments)
        log.append(state.commit().to_batch(CODEC))
    return log


@given(st.lists(st.lists(changes, max_size=4), min_size=1, max_size=8), st.data())
def test_the_end_of_a_log_on_top_of_any_later_state_is_the_whole_log(
    script: list[list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    log = logged(script)
    copied = data.draw(st.integers(0, len(log)))
    since = data.draw(st.integers(0, copied))
    whole, copy = fresh(), fresh()
    for part in log:
        whole.replay(part)
    for part in [*log[:copied], *log[since:]]:
        copy.replay(part)
    assert held(copy) == held(whole)

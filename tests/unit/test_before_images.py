"""What keys held before the batch in progress goes with them: all of it, and of nothing that has not changed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from godwit.runtime.instance.instance import Instance
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.variables import Variable

KEYS = pa.schema([("key", pa.int64())])
BYTES = pa.schema([("bytes", pa.binary())])
VARIABLES = (Variable("n", "value", BYTES), Variable("large", "value", BYTES), Variable("seen", "list", BYTES))
N, LARGE, SEEN = range(3)
A, B, NEW = (1,), (2,), (3,)


def origin() -> KeyedState:
    """A and B from before this batch; A and a new key have changed in it, A's large value has not."""
    state = KeyedState(VARIABLES, KeyCodec(KEYS))
    for key in (A, B):
        state.value_put(N, key, b"old")
        state.value_put(LARGE, key, b"x" * 1000)
        state.list_put(SEEN, key, [b"%d" % n for n in range(5)])
    state.commit()
    state.settle()
    state.value_put(N, A, b"new")
    state.list_append(SEEN, A, [b"more"])
    state.value_put(N, NEW, b"first")
    state.commit()
    return state


def moved(state: KeyedState, into: KeyedState) -> list[pa.RecordBatch]:
    """As a target takes copies; gives what is still to be amended, in parts of two rows."""
    keys = [A, B, NEW]
    for batch in state.export_keys(keys, 2, 1 << 20):
        into.replay(batch)
    into.settle_keys(keys)
    return list(state.export_committed(keys, 2, 1 << 20))


def shown(state: KeyedState, committed: bool) -> list[Any]:
    return sorted((row for batch in state.export(committed) for row in batch.to_pylist()), key=repr)


def test_a_value_that_has_not_changed_does_not_go_twice() -> None:
    into = KeyedState(VARIABLES, KeyCodec(KEYS))
    parts = moved(origin(), into)
    assert {var for part in parts for var in part.columns[-4].to_pylist()} == {N, SEEN}
    assert sum(part.nbytes for part in parts) < 1000


@pytest.mark.parametrize("committed", [True, False])
def test_the_target_shows_what_the_origin_showed(committed: bool) -> None:
    state, into = origin(), KeyedState(VARIABLES, KeyCodec(KEYS))
    for part in moved(state, into):
        into.amend(part)
    assert shown(into, committed) == shown(state, committed)


@pytest.mark.parametrize("committed", [True, False])
def test_so_does_a_target_that_has_restarted(committed: bool) -> None:
    spec = OperatorSpec("op", "P", "native", KEYS, KEYS, VARIABLES)
    state, instance = origin(), Instance("op", spec, KeyedState(VARIABLES, KeyCodec(KEYS)), KeyCodec(KEYS))
    info = {"batch": instance.progress.batch}
    for part in moved(state, instance.state):
        instance.recovery.committed(info, part)
    assert shown(instance.state, committed) == shown(state, committed)

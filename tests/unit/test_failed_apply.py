"""A request that fails after user code has run: on a host's own loop, with a real changelog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointUnusable, StateTooLarge, StateUncertain
from godwit.state import changes
from godwit.state.codec import compile_codec
from godwit.state.spill import Spill
from tests.property.bench_host import BenchHost, chunk_of, everything_of, operator_of, request, welcome

KEYS = [f"k{i}" for i in range(40)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[BenchHost]:
    """With so little memory that every chunk spills."""
    found = BenchHost(tmp_path, operator_of(), memory_max_bytes=2_000)
    found.do(lambda i: i.open(request(0), "0", 1_000, welcome))
    for at in (0, 40):
        found.do(
            lambda i, at=at: i.apply(request(0), "0", chunk_of([(f"other-{at + n}", 1) for n in range(40)], first=at))
        )
    yield found
    found.close()


def _counts(host: BenchHost) -> set[int]:
    """What the count of every key is, by how often its rows were applied."""
    codec = compile_codec(host.instance.spec.variables[0].schema)
    found = host.instance.state.value_get_many(0, [(key,) for key in KEYS])
    return {codec.decode(payload)[0] for payload in found if payload is not None}


def test_spill_that_fails_leaves_counts_as_they_were(host: BenchHost, monkeypatch: pytest.MonkeyPatch) -> None:
    second = chunk_of([(key, 2) for key in KEYS], first=80)

    def full(*_: Any) -> None:
        raise StateTooLarge("no space left on device")

    before = everything_of(host.instance)
    with monkeypatch.context() as disk:
        disk.setattr(Spill, "put_many", full)
        for _ in range(3):
            with pytest.raises(StateTooLarge, match="operator=everything, batch=0"):
                host.do(lambda i: i.apply(request(0), "0", second))
    assert everything_of(host.instance) == before
    host.do(lambda i: i.apply(request(0), "0", second))
    assert _counts(host) == {1}
    assert _counts(host.restarted()) == {1}


def test_changes_over_the_size_limit_leave_counts_as_they_were(
    host: BenchHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = chunk_of([(key, 2) for key in KEYS], first=80)
    before = everything_of(host.instance)
    with monkeypatch.context() as limit:
        limit.setattr(changes, "_BATCH_BYTES_MAX", 10)
        for _ in range(2):
            with pytest.raises(StateTooLarge, match="operator=everything, batch=0"):
                host.do(lambda i: i.apply(request(0), "0", second))
    assert everything_of(host.instance) == before
    host.do(lambda i: i.apply(request(0), "0", second))
    assert _counts(host) == {1}
    assert _counts(host.restarted()) == {1}


def test_failure_after_the_append_writes_nothing_more_and_recovers(
    host: BenchHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what other lanes send to the same host meanwhile is not written on top of a half-merged state."""
    second, third = chunk_of([(key, 2) for key in KEYS], first=80), chunk_of([(key, 3) for key in KEYS])
    host.settle()

    def broken(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as memory:
        memory.setattr(type(host.instance.ledger), "record", broken)
        with pytest.raises(StateUncertain):
            host.do(lambda i: i.apply(request(0), "0", second))
    with pytest.raises(StateUncertain):
        host.do(lambda i: i.apply(request(0), "1", third))
    again = host.restarted()
    for lane, chunk in (("0", second), ("1", third)):
        again.do(lambda i, lane=lane, chunk=chunk: i.apply(request(0), lane, chunk))
    assert _counts(again) == {2}


def test_host_whose_disk_is_full_repeats_that_error_until_it_has_ended(
    host: BenchHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the failed change had staged is still there. Before: keys that were dropped then met it, and broke an invariant."""
    host.settle()
    second = chunk_of([(key, 2) for key in KEYS], first=80)

    def full(*_: Any) -> int:
        raise CheckpointUnusable("no space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(type(host.log), "append", full)
        with pytest.raises(CheckpointUnusable):
            host.do(lambda i: i.apply(request(0), "0", second))
    with pytest.raises(CheckpointUnusable):
        host.instance.keys.drop([("other-0",)], settled=True)

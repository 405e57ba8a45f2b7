"""Initial state that is given again, because the job that brought it did not come to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from godwit.errors import StaleRun
from godwit.state.snapshot import Compactor
from tests.property.bench_host import NAME, BenchHost, chunk_of, everything_of, operator_of, request, welcome

TEN = [(f"k{n}", n) for n in range(10)]


def bring(host: BenchHost, job: str, lane: str, rows: list[tuple[str, int]]) -> None:
    """What a task of the job does; it ends when all is in the log."""
    chunk = chunk_of(rows)
    with host.shared.lock:
        host.instance.begin_initial(job)
        host.instance.initialise(lane, chunk.batch, chunk.rows, chunk.hashes, 1_000)
    host.settle()


def items(host: BenchHost) -> dict[str, int]:
    state = host.instance.state
    return {str(key[0]): len(state.list_get(2, key)) for key in list(state.keys())}


@pytest.mark.parametrize("between", ["nothing", "restart", "compaction"])
def test_initial_rows_that_are_cut_otherwise_are_taken_up_once(tmp_path: Path, between: str) -> None:
    """Before: six of ten rows were known by their places, and the four that came in a partition of their own counted twice."""
    host = BenchHost(tmp_path / "host", operator_of())
    bring(host, "job-1", "initial-0", TEN)
    host = _after(between, host)
    bring(host, "job-2", "initial-0", TEN[:6])
    bring(host, "job-2", "initial-0", TEN[:6])  # a task that is tried again
    host = _after(between, host)
    bring(host, "job-2", "initial-1", TEN[6:9])
    assert items(host) == dict.fromkeys((key for key, _ in TEN[:9]), 1), "nor is a row there that is not given any more"
    with pytest.raises(StaleRun):
        bring(host, "job-1", "initial-0", TEN)
    _goes_on(host)
    host.close()


def _after(what: str, host: BenchHost) -> BenchHost:
    if what == "compaction":
        host.log.rotate()
        settled = {NAME: host.instance.progress.batch - 1}
        Compactor(host.log.generation).compact(host.directory, host.log.sealed(), settled)
    return host if what == "nothing" else host.restarted()


def _goes_on(host: BenchHost) -> None:
    """The first batch, and that it can begin anew, from the initial state."""
    seen: list[Any] = []
    for run in ("run", "later run"):
        first = type(request(0))("query", run, 0)
        host.do(lambda i, first=first: i.open(first, "0", 1_000, welcome))  # type: ignore[misc]
        host.do(lambda i, first=first: i.apply(first, "0", chunk_of([("k1", 3)])))  # type: ignore[misc]
        seen.append(everything_of(host.instance, counted=False)["state"])
    assert seen[0] == seen[1]


class _Noting:
    """A follower, as a hand-over has one that copies keys."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def changed(self, batch: int, changes: Any) -> None:
        self.keys += [str(key[0]) for block in changes.blocks for key in block.keys]


def test_initial_rows_are_told_to_a_hand_over_that_copies_their_keys(tmp_path: Path) -> None:
    """Before: the target did not get keys whose initial rows came after the hand-over had begun."""
    host, follower = BenchHost(tmp_path / "host", operator_of()), _Noting()
    with host.shared.lock:
        host.instance.begin_initial("job-1")
    host.instance.followers.append(follower)  # type: ignore[arg-type]
    bring(host, "job-1", "initial-0", TEN[:3])
    assert set(follower.keys) == {"k0", "k1", "k2"}
    host.close()

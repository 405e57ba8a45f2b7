"""A task may end when its work is on the disk: what a host does before it confirms a lane."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from godwit.runtime.messages import FinishLane, OpenLane
from tests.property.bench_host import BenchHost, chunk_of, operator_of, request, welcome


@pytest.mark.parametrize("durability", ["disk", "process"])
def test_a_lane_is_confirmed_when_all_of_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    host = BenchHost(tmp_path, operator_of())
    host.log.durability = durability  # type: ignore[assignment]
    host.do(lambda i: i.open(request(0), "0", 1_000, welcome))
    host.do(lambda i: i.apply(request(0), "0", chunk_of([("a", 1), ("b", 2)])))
    synced: dict[str, int] = {}

    def noted(fd: int) -> None:
        synced[Path(f"/proc/self/fd/{fd}").resolve().name] = os.fstat(fd).st_size

    monkeypatch.setattr(os, "fsync", noted)
    asked = request(0)
    lane = OpenLane("keep", asked.query, asked.run, asked.batch, "0")
    host.exchange._finish(host.shared, lane, FinishLane(2, None, 2, (), ("host-0",)))
    (segment,) = tmp_path.glob("log-*")
    assert host.log.written().lsn >= host.shared.lsn
    assert synced.get(segment.name) == (segment.stat().st_size if durability == "disk" else None)
    host.close()

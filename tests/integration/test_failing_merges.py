"""A host that cannot merge its log goes on serving, says so, and merges again when it can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from godwit.runtime.host.host import HostConfig
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.messages import GetStatus, HostReport
from godwit.transport import typed
from tests.integration.nest import Nest, rows
from tests.spark.flocks import wait_until


class Small(Nest):
    """Its hosts begin a new segment with almost every batch."""

    def config(self, host: str) -> HostConfig:
        return replace(super().config(host), segment_bytes_max=4000)


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Small(tmp_path / "godwit", hosts=1).start_all()
    yield nest
    nest.close()


def status(nest: Nest) -> HostReport:
    client = nest.client("host-0")
    try:
        return typed.ask(client, GetStatus())
    finally:
        client.close()


def test_a_damaged_segment_is_told_and_merged_when_it_is_put_back(nest: Nest) -> None:
    directory = host_directory(str(nest.checkpoint), "host-0")
    batch = 0

    def run_until(count: int) -> None:
        nonlocal batch
        while len(list(directory.glob("log-*"))) < count:
            assert len(list(nest.run(batch, "0", [rows(range(batch * 100, batch * 100 + 100))]))) == 100
            batch += 1

    run_until(2)  # one is sealed: not enough to be merged
    sealed = min(directory.glob("log-*"))
    whole = sealed.read_bytes()
    sealed.write_bytes(whole[:-20] + bytes(20))
    run_until(3)
    wait_until(lambda: status(nest).upkeep_error, what="the host says that it cannot merge")
    assert sealed.name in (status(nest).upkeep_error or "")
    run_until(6)  # and it goes on
    sealed.write_bytes(whole)
    wait_until(lambda: status(nest).upkeep_error is None, what="merging is tried again")
    wait_until(lambda: not sealed.exists(), what="the segment is merged")
    assert sum(nest.state(batch - 1).values()) == batch * 100

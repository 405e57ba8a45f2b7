"""A batch beyond the memory limit of a real host: while it goes on, after the host was killed, and when it comes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from godwit.runtime.host.host import HostConfig
from godwit.runtime.messages import GetStatus
from godwit.transport import typed
from tests.integration.nest import Nest, rows

pytestmark = [pytest.mark.timeout(300)]
LIMIT = 800_000  # of which an eighth is for the ledger: two chunks of this test
CHUNK_ROWS = 2_000
CHUNKS = 30
KEYS = 7


class SmallNest(Nest):
    def config(self, host: str) -> HostConfig:
        return replace(super().config(host), memory_max_bytes=LIMIT)

    def memory(self, host: str = "host-0") -> dict[str, Any]:
        client = self.client(host)
        (instance,) = typed.ask(client, GetStatus()).instances
        client.close()
        return instance


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[SmallNest]:
    made = SmallNest(tmp_path / "godwit", hosts=1)
    made.start_all()
    yield made
    made.close()


def batches(nest: SmallNest, until: int = CHUNKS) -> Iterator[pa.RecordBatch]:
    for number in range(until):
        yield rows(range(number * CHUNK_ROWS, (number + 1) * CHUNK_ROWS), KEYS)
        assert nest.memory()["ledger_bytes"] <= LIMIT // 8 + 4 * CHUNK_ROWS * 60, "and the windows in flight"


def test_a_batch_beyond_the_limit_is_bounded_survives_its_host_and_is_counted_once(nest: SmallNest) -> None:
    broken_off = nest.run(0, "0", batches(nest))
    first = list(islice(broken_off, (CHUNKS - 5) * CHUNK_ROWS))
    broken_off.close()  # as a task that is lost
    assert nest.memory()["ledger_disk_bytes"] > LIMIT
    nest.kill("host-0")
    nest.start("host-0")
    assert 0 < nest.memory()["ledger_bytes"] <= LIMIT // 8 + CHUNK_ROWS * 60
    assert nest.memory()["ledger_disk_bytes"] > LIMIT
    again = list(nest.run(0, "0", batches(nest)))
    assert again[: len(first)] == first
    assert len(again) == CHUNKS * CHUNK_ROWS
    assert nest.memory()["replayed"] >= len(first)
    count = CHUNKS * CHUNK_ROWS
    assert nest.state(0) == {key: len(range(key, count, KEYS)) for key in range(KEYS)}
    assert list(nest.run(1, "0", iter(()))) == []
    assert nest.memory()["ledger_bytes"] == nest.memory()["ledger_disk_bytes"] == 0

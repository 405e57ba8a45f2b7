"""What real hosts say of themselves: hot keys by name, useful time, what comes in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import godwit
from godwit.control.offered_rate import offered
from godwit.runtime.messages import GetStatus
from godwit.transport import typed
from tests.integration.nest import HASHED, Nest, route_hash
from tests.spark.flocks import Count, wait_until

HOT = 3


class SlowCount(Count):
    """A millisecond of work for each row."""

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        time.sleep(len(rows) / 1000)
        return super().process(rows, state, times)


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Nest(tmp_path / "godwit", hosts=2, processor=SlowCount()).start_all()
    yield nest
    nest.close()


def rows(keys: list[int]) -> pa.RecordBatch:
    hashes = np.array([route_hash(key) for key in keys], np.int64)
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(range(len(keys))), pa.array(hashes)], schema=HASHED)


def told(nest: Nest) -> dict[str, dict[str, Any]]:
    found = {}
    for host in nest.routing.hosts:
        client = nest.client(host)
        (found[host],) = typed.ask(client, GetStatus()).instances
        client.close()
    return found


def test_hosts_tell_what_they_have_been_doing(nest: Nest) -> None:
    keys = [HOT if at % 2 else at for at in range(600)]
    owner = nest.routing.owner(route_hash(HOT))

    def summed_up() -> dict[str, Any] | None:
        """Hot keys are summed up once a second, with the next chunk."""
        nonlocal batch
        list(nest.run(batch, "0", [rows(keys)]))
        batch += 1
        found = told(nest)
        return found if found[owner]["gauges"]["hot"]["keys"] else None

    batch = 0
    found = wait_until(summed_up, what="hot keys")
    (hot,) = found[owner]["gauges"]["hot"]["keys"]
    assert (hot["key"], hot["hash"]) == ([HOT], route_hash(HOT))
    assert 0 < hot["rows_at_least"] <= hot["rows_at_most"] <= found[owner]["rows"]
    for host, instance in found.items():
        short = instance["gauges"]["short"]
        assert short["true_rows_per_s"] == pytest.approx(1000, rel=0.2), host
        assert 0 < short["useful"] <= 1
        # The other host has the keys besides: fewer rows, in the same time.
        assert (short["useful"] < found[owner]["gauges"]["short"]["useful"]) == (host != owner)
    other = next(host for host in found if host != owner)
    assert HOT not in [hot["key"][0] for hot in found[other]["gauges"]["hot"]["keys"]]


def test_what_comes_in_is_told_from_batches(nest: Nest) -> None:
    for batch in range(4):
        list(nest.run(batch, "0", [rows(list(range(200)))]))
    found = [instance["batches"] for instance in told(nest).values()]
    assert [sum(rows for _, _, rows in batches) for batches in zip(*found, strict=True)] == [200] * 4
    # Each batch was made when the one before it had been worked off: as many came in as were applied.
    assert 0 < (offered(found) or 0.0) <= 2 * 1000

"""A host that is stopped breaks no stream: whoever waits for it goes on with its successor or its heirs all the same.

When it is continued it changes nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from godwit.runtime.router.routing_table import write_routing
from tests.integration.nest import OPERATOR, Nest, rows
from tests.integration.test_migration import Checked, Flow, ended, groups_of, migrate
from tests.integration.test_takeover import check, copies_stand, taken_over
from tests.spark.flocks import wait_until


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Nest(tmp_path / "godwit", hosts=3).start_all()
    write_routing(str(nest.checkpoint), OPERATOR, nest.routing)
    yield nest
    nest.close()


def stopped(nest: Nest, host: str) -> subprocess.Popen[bytes]:
    process = nest.process(host)
    os.kill(process.pid, signal.SIGSTOP)
    return process


def continued(process: subprocess.Popen[bytes]) -> None:
    """It finds itself replaced, and ends."""
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(20) != 0


@pytest.mark.long
def test_routers_go_on_with_its_successor(nest: Nest) -> None:
    flow = Flow(nest)
    process = stopped(nest, "host-2")
    nest.start("host-2")
    flow.wait_batches(3)
    continued(process)
    flow.wait_batches(2)
    check(nest, flow)


def test_routers_go_on_with_its_heirs(nest: Nest) -> None:
    flow = Flow(nest)
    process = stopped(nest, "host-2")
    taken_over(nest, "host-2", ["host-0", "host-1"], {})
    flow.wait_batches(3)
    continued(process)
    flow.wait_batches(2)
    check(nest, flow)


@pytest.mark.long
def test_a_router_that_cannot_write_any_more_goes_on_too(nest: Nest) -> None:
    """A host that does not read is soon sent no more, and the router waits there until Spark has killed the process."""
    size = 150_000
    batches = [rows(range(n * size, (n + 1) * size), 97) for n in range(4)]
    zombies = []

    def given() -> Iterator[pa.RecordBatch]:
        yield batches[0]
        zombies.append(stopped(nest, "host-2"))
        nest.begin("host-2")
        yield from batches[1:]

    seen = Checked()
    work = threading.Thread(target=lambda: seen.take(nest.run(0, "0", given())), daemon=True)
    work.start()
    wait_until(lambda: (lease := nest.lease("host-2")) and lease.generation == 2, what="the successor serves")
    zombies[0].kill()
    work.join(60)
    assert not work.is_alive()
    assert seen.counts == nest.state(0)
    assert sum(seen.counts.values()) == 4 * size


@pytest.mark.long
def test_a_move_to_it_goes_on_with_its_successor(nest: Nest) -> None:
    flow = Flow(nest)
    moving = groups_of(nest, "host-0")[::2]
    process = stopped(nest, "host-1")
    migrate(nest, "host-0", "host-1", "pause", [{"groups": moving, "keys": []}])
    nest.start("host-1")
    assert len(ended(nest, "host-0").moved) == len(moving)
    continued(process)
    flow.wait_batches(2)
    check(nest, flow)


def test_a_move_from_it_is_made_anew_by_its_successor(nest: Nest) -> None:
    """Its target reads from a connection that never ends, and has to let go of what it has got of the keys."""
    flow = Flow(nest)
    moving = copies_stand(nest)
    process = stopped(nest, "host-2")
    nest.start("host-2")
    migrate(nest, "host-2", "host-1", "live", [{"groups": moving, "keys": []}], "anew")
    assert len(ended(nest, "host-2", "anew").moved) == len(moving)
    continued(process)
    flow.wait_batches(2)
    check(nest, flow)

"""A count with a timer for every key, on real host processes, and kills that are aimed at the moment in which timers fire.

Every key that had rows in a batch has a timer that is due in the next one, and the timer tells the count: so whoever fires it
after a row of that batch, twice, or never, tells something else than a batch before.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import godwit
from godwit.model.units import Units
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.messages import GetMarks
from godwit.runtime.router.routing_table import read_routing, write_routing
from godwit.runtime.takeover.rescue import Inherited, LostHost, divide, fence, hand_to_heirs
from godwit.transport import typed
from godwit.transport.typed import Reply
from tests.integration.nest import HASHED, OPERATOR, Nest, route_hash
from tests.spark.flocks import wait_until

LANES = ("0", "1")
LANE_ROWS = 60
KEYS = 40  # of each lane, and none of both: how lanes interleave is nobody's promise
HOLD_S = 60.0


class Bells(godwit.Processor):
    """Row k of a key gives (k, row); its timer gives (k, -1). A host waits in its timers while a file holds it there."""

    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("n", pa.int64())])

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        state.set_timer(slice(None), times.processing_ms)
        return self.emit(rows, count=count)

    def on_timer(self, timers: Any, state: Any, times: godwit.Times) -> godwit.Outputs:
        self._wait()
        counts = state["n"][timers.codes]
        return self.emit(timers, count=counts, n=np.full(len(timers), -1))

    def _wait(self) -> None:
        hold = Path(self._directory) / f"hold-{os.getpid()}"
        if hold.exists():
            hold.with_name(f"held-{os.getpid()}").touch()
            end_s = time.monotonic() + HOLD_S
            while hold.exists() and time.monotonic() < end_s:
                time.sleep(0.002)


class Belfry:
    """Batches of two lanes over a nest, one after another, each checked when it is complete."""

    def __init__(self, directory: Path, hosts: int) -> None:
        self.signals = directory / "signals"
        self.signals.mkdir(parents=True)
        self.nest = Nest(directory / "godwit", hosts, Bells(str(self.signals)), time_mode="processingTime").start_all()
        write_routing(str(self.nest.checkpoint), OPERATOR, self.nest.routing)
        self.batch = 0
        self.counts: Counter[int] = Counter()
        self._due: set[int] = set()  # keys whose timers are to fire in the next batch

    # -- batches -----------------------------------------------------------------------------------------------------

    def input(self, lane: str, batch: int) -> pa.RecordBatch:
        """Rows of the lane; a key has one of them or two, and not in every batch."""
        begin = batch * LANE_ROWS
        numbers = np.arange(begin, begin + LANE_ROWS)
        keys = (numbers * 7 + batch) % KEYS * len(LANES) + LANES.index(lane)
        return _rows(keys, numbers)

    def begin(self, lanes: tuple[str, ...] = LANES) -> Tasks:
        return Tasks(self, self.batch, lanes)

    def run(self) -> None:
        """A batch in which nobody is killed."""
        self.complete(self.begin())

    def complete(self, tasks: Tasks) -> None:
        """All tasks have ended: what they gave is exactly what the batch should give."""
        outputs = tasks.outputs()
        timers = {row["key"]: row["count"] for row in outputs if row["n"] < 0}
        assert len(timers) == sum(row["n"] < 0 for row in outputs), "a timer fired twice"
        assert timers == {key: self.counts[key] for key in self._due}, (
            f"batch {self.batch}: lost {self._due - timers.keys()}, too many {timers.keys() - self._due}, "
            f"too late { {k: (c, self.counts[k]) for k, c in timers.items() if c != self.counts[k]} }"
        )
        self._due = set()
        for row in outputs:
            if row["n"] >= 0:
                self.counts[row["key"]] += 1
                self._due.add(row["key"])
                assert row["count"] == self.counts[row["key"]], row
        assert sum(self.counts.values()) == (self.batch + 1) * LANE_ROWS * len(LANES)
        self.batch += 1

    # -- losses ------------------------------------------------------------------------------------------------------

    def hold(self, host: str) -> None:
        (self.signals / f"hold-{self.nest.process(host).pid}").touch()

    def let_go(self, host: str) -> None:
        (self.signals / f"hold-{self.nest.process(host).pid}").unlink()

    def held(self, host: str) -> bool:
        return (self.signals / f"held-{self.nest.process(host).pid}").exists()

    def wait_held(self, host: str) -> None:
        wait_until(lambda: self.held(host), what=f"{host} is firing")

    def mark(self, host: str) -> dict[str, Any]:
        client = self.nest.client(host)
        try:
            return typed.ask(client, GetMarks()).marks[OPERATOR]
        finally:
            client.close()

    def wait_fired(self, hosts: list[str]) -> None:
        def fired(host: str) -> bool:
            mark = self.mark(host)
            return mark["batch"] == self.batch and mark["fired"]

        for host in hosts:
            wait_until(lambda host=host: fired(host), what=f"{host} has fired")

    def estate(self, lost: str) -> LostHost:
        return fence(host_directory(str(self.nest.checkpoint), lost), "process")

    def take_over(self, lost: str, copies: dict[str, dict[str, Units]] | None = None) -> dict[str, Inherited]:
        estate = self.estate(lost)
        heirs = [host for host in self.nest.routing.hosts if host != lost]
        owned = {operator: own.mine() for operator, own in estate.owned.items()}
        told = hand_to_heirs(estate, divide(owned, heirs, copies or {}), self.ask)
        self.follow(lost, told)
        return told

    def follow(self, lost: str, told: dict[str, Inherited]) -> None:
        """What the driver does with the tables."""
        table = read_routing(str(self.nest.checkpoint), OPERATOR)
        assert table is not None
        for heir, answer in told.items():
            table = table.moved(answer.served[OPERATOR], heir)
        self.nest.routing = table.parted([lost])
        write_routing(str(self.nest.checkpoint), OPERATOR, self.nest.routing)

    def ask(self, host: str, request: typed.Request[Reply]) -> Reply:
        client = self.nest.client(host)
        try:
            return typed.ask(client, request)
        finally:
            client.close()


class Tasks:
    """The tasks of a batch, each in a thread."""

    def __init__(self, belfry: Belfry, batch: int, lanes: tuple[str, ...]) -> None:
        self._belfry = belfry
        self._batch = batch
        self._outputs: dict[str, list[dict[str, Any]]] = {}
        self._errors: dict[str, BaseException] = {}
        self._threads = [threading.Thread(target=self._run, args=(lane,), daemon=True) for lane in lanes]
        for thread in self._threads:
            thread.start()

    def _run(self, lane: str) -> None:
        try:
            whole = self._belfry.input(lane, self._batch)
            pieces = [whole.slice(at, 20) for at in range(0, len(whole), 20)]
            self._outputs[lane] = list(self._belfry.nest.run(self._batch, lane, iter(pieces)))
        except BaseException as error:  # noqa: BLE001 raised by whoever wants the outputs
            self._errors[lane] = error

    def outputs(self) -> list[dict[str, Any]]:
        self.join()
        for error in self._errors.values():
            raise error
        return [row for lane in sorted(self._outputs) for row in self._outputs[lane]]

    def join(self) -> None:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a task does not end"


def _rows(keys: Any, numbers: Any) -> pa.RecordBatch:
    hashes = np.array([route_hash(key) for key in keys.tolist()], np.int64)
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(numbers), pa.array(hashes)], schema=HASHED)

"""Hosts are lost, one after another, while lanes open a batch at them: every timer fires once, and before the rows of its key.

Real hosts without their network: instances, changelogs, takeovers with wills, and restarts, in one process and in any order.
Lanes do what routers do: they open every host before they send a row, and again where one was lost that had not answered.
Every key that has rows in a batch has a timer that is due in the next one, and the timer tells how many rows there were.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import godwit
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.runtime import messages
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.chunk.ownership_columns import MINE
from godwit.runtime.durable.work import Work
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.host.migration_service import MigrationService
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.instances import HostResources, Instances
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.messages import OpenLane, OperatorDefinition, RunAdmitted
from godwit.runtime.processor.native import NativeAdapter
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.runtime.processor.watchdog import Watch
from godwit.runtime.takeover.rescue import divide, fence, hand_to_heirs
from godwit.state.changelog import Changelog
from godwit.state.keys import KeyCodec
from godwit.transport import typed
from tests.spark.flocks import wait_until

INPUT = pa.schema([("key", pa.int64()), ("at", pa.timestamp("us"))])
KEY = pa.schema([INPUT.field("key")])
CODEC = KeyCodec(KEY)
NAME = "bells"
BATCH_MS = 1_000
BATCHES = 4
CARRYING, EMPTY = ("a", "b"), "empty-c"
HOSTS = ("host-0", "host-1", "host-2", "host-3")
GROUPS = 12
KEYS = {"a": range(0, 30, 2), "b": range(1, 30, 2)}


class Bells(godwit.Processor):
    """Counts the rows of a key; its timer tells the count."""

    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("rings", pa.bool_())])

    def __init__(self, by_event: bool) -> None:
        self._by_event = by_event

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        state["n"] += rows.counts
        at_ms = rows.batch.column("at").cast(pa.int64()).to_numpy() // 1000
        # Due in the next batch: its timers fire up to the event time of the batch before this one.
        state.set_timer(rows.codes, at_ms - BATCH_MS if self._by_event else times.processing_ms)
        return self.emit(rows, n=state["n"][rows.codes], rings=np.zeros(len(rows), np.bool_))

    def on_timer(self, timers: Any, state: Any, times: godwit.Times) -> godwit.Outputs:
        return self.emit(timers, n=state["n"][timers.codes], rings=np.ones(len(timers), np.bool_))


def operator_of(time_mode: Any) -> Operator:
    by_event = time_mode == "eventTime"
    adapter = NativeAdapter(Bells(by_event), INPUT, ["key"])
    spec = OperatorSpec(
        NAME,
        "Bells",
        "native",
        KEY,
        adapter.output_schema,
        adapter.variables,
        time_mode=time_mode,
        event_time="at" if by_event else None,
    )
    return Operator(spec, cloudpickle.dumps(adapter))


class Place:
    """A host without a network."""

    def __init__(self, flock: Flock, name: str) -> None:
        self.flock, self.name = flock, name
        self.stopped = False
        checkpoint = str(flock.directory)
        self.log, recovered = Changelog.open(host_directory(checkpoint, name))
        routing = Routing.spread(HOSTS, GROUPS)
        self.instances = Instances(name, HostResources(self.log, Watch(lambda _: None), flock.clock_ms, set), routing)
        for part in recovered.parts():
            self.instances.recover(part.info, memoryview(part.body))
        for shared in self.instances:
            self.instances.own(shared)
        self.instances.define(OperatorDefinition.of(flock.operator))
        port = HostServices(name, checkpoint, "token", "", self.log, flock.clock_ms, lambda: self.stopped)
        self.exchange = LaneExchange(port, lambda _: RunAdmitted())
        self.moves = MigrationService(port, self.instances.named)
        for shared in self.instances:
            self.moves.recover(shared)
        own = self.shared.instance.ownership
        assert own is not None
        wait_until(lambda: not own.incoming, what="it has heard of the will")

    @property
    def shared(self) -> SharedInstance:
        return self.instances.named(NAME)

    def die(self) -> None:
        self.stopped = True
        self.log._line.clear()  # what stood in line was never written
        self.log.close()

    def ask(self, request: typed.Request[Any]) -> Any:
        return self.moves.handlers()[type(request)](request)


class Lane:
    """A task of a batch, as its router works."""

    def __init__(self, flock: Flock, batch: int, name: str) -> None:
        self.flock, self.batch, self.name = flock, batch, name
        self.carries = name in CARRYING
        self.begin()

    def begin(self) -> None:
        """From the start; another attempt of the task, too."""
        self.opened: dict[str, dict[str, list[tuple[int, int]]]] = {}
        self.known = list(self.flock.places)
        self.outputs: list[tuple[int, int]] | None = None

    @property
    def request(self) -> BatchRef:
        return BatchRef("query", "run", self.batch)

    def open(self, host: str) -> None:
        exchange, shared = self.flock.places[host].exchange, self.flock.places[host].shared
        lane = OpenLane(NAME, "query", "run", self.batch, self.name, carries=self.carries)
        work = exchange._open(shared, lane)
        self.opened[host] = told(work)

    def lost(self, host: str) -> None:
        """It is in no table any more. If it had not answered, all that have are opened once more."""
        if self.outputs is None and host in self.known and host not in self.opened:
            self.opened = {at: told for at, told in self.opened.items() if at not in self.known}
        self.known = [known for known in self.known if known != host]

    def waits_for(self) -> list[str]:
        return [host for host in self.known if host not in self.opened and host in self.flock.places]

    def send(self) -> None:
        """All hosts have answered: the rows, and the end."""
        firings: dict[str, list[tuple[int, int]]] = {}
        for by_firing in self.opened.values():
            firings |= by_firing
        self.outputs = [row for name in sorted(firings) for row in firings[name]]
        for at, (key, at_us) in enumerate(self.flock.rows(self.name, self.batch)):
            owner = self.flock.owner(key)
            columns = [pa.array([key]), pa.array([at_us], pa.timestamp("us"))]
            hashes = np.array([CODEC.route_hash((key,))])
            chunk = Chunk(pa.RecordBatch.from_arrays(columns, schema=INPUT), np.array([at]), hashes)
            owner.exchange.worked(owner.shared, lambda i, chunk=chunk: i.apply(self.request, self.name, chunk))
        for place in self.flock.places.values():
            if place.name in self.known:
                newest_ms = (self.batch + 1) * BATCH_MS if self.carries else None
                rows = len(self.flock.rows(self.name, self.batch))
                place.exchange.worked(
                    place.shared, lambda i, n=rows, t=newest_ms: i.finish(self.request, self.name, n, t)
                )


class Flock:
    def __init__(self, directory: Path, time_mode: Any, chance: random.Random) -> None:
        self.directory, self.chance = directory, chance
        self.operator = operator_of(time_mode)
        self.now_ms = BATCH_MS
        self.touched: dict[tuple[str, int], list[int]] = {}
        self.losses = 0
        self.places = {name: Place(self, name) for name in HOSTS}

    def clock_ms(self) -> int:
        self.now_ms += 1  # no two hosts begin a batch at the same time
        return self.now_ms

    def rows(self, lane: str, batch: int) -> list[tuple[int, int]]:
        if lane not in CARRYING:
            return []
        if (lane, batch) not in self.touched:
            self.touched[lane, batch] = sorted(self.chance.sample(KEYS[lane], 6))
        return [(key, (batch + 1) * BATCH_MS * 1000) for key in self.touched[lane, batch]]

    def owner(self, key: int) -> Place:
        hashes = np.array([CODEC.route_hash((key,))])
        (owner,) = [place for place in self.places.values() if place.shared.instance.stands(hashes)[0] == MINE]
        return owner

    def restart(self, host: str) -> None:
        self.places[host].die()
        self.places[host] = Place(self, host)

    def lose(self, lost: str, restarts: bool) -> None:
        """For good: the others take over, one of them perhaps restarting before it has heard of the will."""
        self.places.pop(lost).die()
        self.losses += 1
        estate = fence(host_directory(str(self.directory), lost), "process")
        owned = {operator: own.mine() for operator, own in estate.owned.items() if own.mine()}
        if not owned:
            return

        def ask(host: str, request: typed.Request[Any]) -> Any:
            if isinstance(request, messages.CompleteTakeover) and restarts:
                self.restart(host)
            return self.places[host].ask(request)

        hand_to_heirs(estate, divide(owned, list(self.places), {}), ask)


def told(work: Work) -> dict[str, list[tuple[int, int]]]:
    """What timers told, by firing."""
    names = [name for name, _ in work.begun["firings"]]
    rings = [[(row["key"], row["n"]) for row in batch.to_pylist()] for batch in work.outputs]
    return dict(zip(names, rings, strict=True))


def run_batch(flock: Flock, batch: int) -> dict[int, int]:
    """All lanes to their end, in any order, whoever is lost meanwhile. Gives what timers told."""
    chance, lanes = flock.chance, [Lane(flock, batch, name) for name in (*CARRYING, EMPTY)]
    first: dict[str, list[tuple[int, int]]] = {}
    while unfinished := [lane for lane in lanes if lane.outputs is None]:
        match chance.choices(("lane", "restart", "lose", "repeat"), (12, 1, 2, 1))[0]:
            case "restart":
                flock.restart(chance.choice(list(flock.places)))
            case "lose" if len(flock.places) > 1 and flock.losses <= batch:
                lost = chance.choice(list(flock.places))
                note(
                    f"batch {batch}: {lost} is lost when {[(lane.name, list(lane.opened)) for lane in lanes]} are open"
                )
                flock.lose(lost, chance.random() < 0.3)
                for lane in lanes:
                    lane.lost(lost)
            case "repeat":
                chance.choice(lanes).begin()
            case _:
                lane = chance.choice(unfinished)
                if waiting := lane.waits_for():
                    lane.open(chance.choice(waiting))
                else:
                    lane.send()
                    assert first.setdefault(lane.name, lane.outputs or []) == lane.outputs, "not the same again"
    rings = [ring for lane in lanes for ring in lane.outputs or []]
    assert len(dict(rings)) == len(rings), "a timer fired twice"
    return dict(rings)


# A thread of a host that has died finds its log closed; in a process of its own it would have died with it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("time_mode", ["processingTime", "eventTime"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_every_timer_fires_once_and_before_the_rows_of_its_key(time_mode: Any, seed: int) -> None:
    counts: Counter[int] = Counter()
    due: set[int] = set()
    with tempfile.TemporaryDirectory() as directory:
        flock = Flock(Path(directory), time_mode, random.Random(seed))
        for batch in range(BATCHES):
            flock.now_ms = (batch + 1) * BATCH_MS
            rings = run_batch(flock, batch)
            assert rings == {key: counts[key] for key in due}, f"batch {batch}: {rings}, not {due}"
            due = {key for name in CARRYING for key, _ in flock.rows(name, batch)}
            counts.update(key for name in CARRYING for key, _ in flock.rows(name, batch))
        for place in flock.places.values():
            place.die()

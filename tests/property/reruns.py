"""Two hosts without processes: real instances, logs, exchange and copies, on which batches are run, moved and run again.

The processor keeps for every key the values of its rows in order; a row without a value removes all of its key. So a row that
is lost, counted twice or out of order shows in the state itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from godwit.model.ownership import Ownership
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.chunk.chunk import Chunk
from godwit.runtime.chunk.ownership_columns import AWAY, MINE, selects
from godwit.runtime.durable.work import Work
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.handover.shipment import Shipment
from godwit.runtime.host.exchange import LaneExchange
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.instances import HostResources, Instances
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.messages import OpenLane, RunAdmitted
from godwit.runtime.processor.rows import Outputs, Rows, Times
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.processor.watchdog import Watch
from godwit.runtime.takeover.heir import LostOperator, ReceiverAnswers
from godwit.state.changelog import Changelog
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import Key, KeyCodec
from godwit.state.recovery import take_over
from godwit.state.snapshot import Compactor
from godwit.state.variables import Variable

INPUT = pa.schema([("key", pa.int64()), ("v", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), ("count", pa.int64())])
KEY = pa.schema([INPUT.field("key")])
CODEC = KeyCodec(KEY, "UTC")
VARIABLES = (
    Variable("seen", "list", pa.schema([("v", pa.int64())])),
    Variable("last", "map", pa.schema([("v", pa.int64())]), pa.schema([("v", pa.int64())])),
)
HOSTS = ("host-0", "host-1")
GROUPS = 4
Row = tuple[int, int | None]  # key and value; without a value the key is removed


class Keep:
    """The adapter of such a processor."""

    current_key: Key | None = None
    current_call = 0
    output_schema = OUTPUT
    variables = VARIABLES

    def open(self, state: KeyedState) -> None:
        self._state = state

    def process(self, rows: Rows, times: Times) -> Outputs:
        counts = []
        for key, value in zip(rows.batch.column("key").to_pylist(), rows.batch.column("v").to_pylist(), strict=True):
            counts.append(self._one((key,), value))
        batch = pa.RecordBatch.from_arrays([rows.batch.column("key"), pa.array(counts, pa.int64())], schema=OUTPUT)
        return Outputs(batch, rows.row_index)

    def _one(self, key: Key, value: int | None) -> int:
        state = self._state
        if value is None:
            state.list_clear(0, key)
            state.map_clear(1, key)
            return 0
        state.list_append(0, key, [b"%d" % value])
        state.map_remove(1, key, b"%d" % (value % 3))
        state.map_put(1, key, b"%d" % (value % 5), b"%d" % value)
        return len(state.list_get(0, key))

    def close(self) -> None:
        return


def spec() -> OperatorSpec:
    return OperatorSpec("keep", "Keep", "native", KEY, OUTPUT, VARIABLES)


def sequential(rows: Iterable[Row]) -> dict[int, tuple[list[bytes], list[tuple[bytes, bytes]]]]:
    """What the state is after these rows, without hosts, batches and logs."""
    state = KeyedState(VARIABLES, CODEC)
    keep = Keep()
    keep.open(state)
    for key, value in rows:
        keep._one((key,), value)
        state.commit()
    return held(state)


def held(state: KeyedState) -> dict[int, tuple[list[bytes], list[tuple[bytes, bytes]]]]:
    return {int(key[0]): (state.list_get(0, key), list(state.map_items(1, key))) for key in list(state.keys())}


def welcome(*_: Any) -> bool:
    """Every run is the newest, and its progress is not asynchronous."""
    return False


class Host:
    """One of the two, from its log."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.directory = root / name
        self.root = root
        self.log: Changelog
        self.shared: SharedInstance
        self._open()

    def _open(self) -> None:
        self.log, recovered = Changelog.open(self.directory)
        instances = Instances(self.name, HostResources(self.log, Watch(lambda _: None), lambda: 1_000, set))
        for part in recovered.parts():
            instances.recover(part.info, memoryview(part.body))
        known = instances.get("keep")
        self.shared = known or SharedInstance(Instance("keep", spec(), KeyedState(VARIABLES, CODEC), CODEC))
        self.instance = self.shared.instance
        self.instance.attach(spec(), Keep())  # type: ignore[arg-type]
        if known is None:
            self.instance.memory.ownership = Ownership.initial(self.name, Routing.spread(HOSTS, GROUPS))
        self.instance.durable.journal = self.log
        self.instance.write([self.instance.define_part(), self.instance.own_part()])
        self.exchange = LaneExchange(
            HostServices(self.name, str(self.root), "", "", self.log, lambda: 1_000, lambda: False),
            lambda _: RunAdmitted(),
        )
        self.port = HostServices(self.name, str(self.root), "token", "", self.log, lambda: 1_000, lambda: False)

    def restart(self, compact: bool = False) -> None:
        self.log.flush(self.shared.lsn)
        if compact:
            self.log.rotate()
            settled = {"keep": self.instance.progress.batch - 1}
            Compactor(self.log.generation).compact(self.directory, self.log.sealed(), settled)
        self.log.close()
        self._open()

    def opened(self, request: BatchRef, lane: str, admit: Any = welcome) -> Work:
        self.exchange._admit = lambda asked: RunAdmitted(bool(admit(request, asked.last_batch, asked.fresh)))
        return self.exchange._open(self.shared, OpenLane("keep", request.query, request.run, request.batch, lane))

    def finish(self, request: BatchRef, lane: str, rows: int, sent: int | None = None) -> None:
        self.exchange.worked(self.shared, lambda i: i.finish(request, lane, rows, None, sent))

    def apply(self, request: BatchRef, lane: str, chunk: Chunk) -> Work:
        return self.exchange.worked(self.shared, lambda i: i.apply(request, lane, chunk))

    @property
    def own(self) -> Ownership:
        assert self.instance.ownership is not None
        return self.instance.ownership


def chunk_of(rows: Sequence[tuple[int, Row]]) -> Chunk:
    """Rows with their numbers."""
    keys = [key for _, (key, _) in rows]
    batch = pa.RecordBatch.from_pydict({"key": keys, "v": [v for _, (_, v) in rows]}, schema=INPUT)
    numbers = np.array([number for number, _ in rows], np.int64)
    return Chunk(batch, numbers, np.array([CODEC.route_hash((key,)) for key in keys], np.int64))


class Flock:
    """Both hosts, and what a router and a mover do with them."""

    def __init__(self, root: Path) -> None:
        self.hosts = [Host(name, root) for name in HOSTS]
        self._moves = 0

    def open(self, request: BatchRef, lanes: Iterable[str]) -> None:
        for lane in lanes:
            for host in self.hosts:
                host.opened(request, lane)

    def apply(self, request: BatchRef, lane: str, rows: Sequence[tuple[int, Row]]) -> dict[str, int]:
        """Gives how many rows each host has got."""
        chunk = chunk_of(rows)
        sent = {}
        for host in self.hosts:
            mine = host.instance.stands(chunk.hashes) == MINE
            if mine.any():
                host.apply(request, lane, chunk.filter(mine))
                sent[host.name] = int(mine.sum())
        return sent

    def run(self, request: BatchRef, rows: Sequence[Row], cut: Sequence[int], upto: int | None = None) -> None:
        """Row after row, each on the lane that the cut says; all lanes are finished if it is not broken off."""
        lanes = [str(lane) for lane in sorted(set(cut[: len(rows)]))]
        self.open(request, lanes or ["0"])
        numbers = dict.fromkeys(lanes, 0)
        sent = {lane: Counter[str]() for lane in lanes}
        for row, lane in zip(rows[:upto], map(str, cut), strict=False):
            sent[lane].update(self.apply(request, lane, [(numbers[lane], row)]))
            numbers[lane] += 1
        for lane in lanes if upto is None else ():
            for host in self.hosts:
                host.finish(request, lane, numbers[lane], sent[lane][host.name])

    def move(self, group: int) -> bool:
        """To the other host, as a mover and a receiver do it in one go; False if the target declines."""
        units = Units.of(Unit("group", group))
        origin, target = self.hosts if group in self.hosts[0].own.mine().groups else reversed(self.hosts)
        self._moves += 1
        name = f"m{self._moves}"
        receiver, answers = Receiver(target.port, target.shared, name, origin.name), ReceiverAnswers()
        receiver.answers.start(answers)
        shipment = Shipment(origin.shared, units, lambda *_: None)
        assert all(each is None for each in shipment.index())
        origin.own.cut(units, target.name)
        select = selects(units, origin.own)
        keys = shipment.keys_of(units, select)
        entries = origin.instance.ledger.of(select)
        out = [shipment.announcement(name, 0, units), *shipment.all_state(0, keys)]
        out += [*shipment.of_batch(0, shipment.with_removed(keys, select), entries), shipment.end(name, 0, units)]
        for item in out:
            for body in [None] if item.bodies is None else item.bodies:
                receiver.take(item.message, body)
        origin.instance.followers.remove(shipment.watcher)
        if not isinstance(answers.last(), messages.StepPrepared):
            origin.own.resume(units)
            receiver.take(messages.StepAborted(0), None)
            return False
        self._hand_over(origin, receiver, name, units)
        return True

    def _hand_over(self, origin: Host, receiver: Receiver, name: str, units: Units) -> None:
        instance = origin.instance
        origin.own.release(f"{name}/0", units, "")
        select = selects(units, origin.own)
        receiver.take(messages.StepReleased(0, origin.own.outgoing[f"{name}/0"].epochs), None)
        keys = list(instance.state.keys())
        hashes = np.array([CODEC.route_hash(key) for key in keys], np.int64)
        gone = [keys[i] for i in np.flatnonzero(select(hashes) & (instance.stands(hashes) == AWAY)).tolist()]
        instance.keys.drop(gone, settled=True)
        instance.ledger.drop(select)
        origin.own.confirm(f"{name}/0")
        instance.write([instance.own_part()])

    def lose(self, which: int) -> None:
        """A host is lost for good, and the other takes over its keys from its log."""
        lost = self.hosts.pop(which)
        (heir,) = self.hosts
        lost.log.flush(lost.shared.lsn)
        lost.log.close()
        _, left = take_over(lost.directory, "process")
        words = {part.info["kind"]: part for part in left.newest_parts()}
        legacy = LostOperator(lost.name, "keep", lost.own.mine(), True, words)
        receiver, answers = Receiver(heir.port, heir.shared, "will", lost.name), ReceiverAnswers()
        receiver.answers.start(answers)
        told = chain(legacy.begin(), (note for part in left.parts() for note in legacy.messages_of(part)))
        for message, body in told:
            receiver.take(message, None if body is None else pa.py_buffer(body))
        for message, body in legacy.end():
            receiver.take(message, None if body is None else pa.py_buffer(body))
        answers.expect(messages.StepPrepared)
        receiver.take(legacy.released(), None)
        answers.expect(messages.StepServed)

    def state(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for host in self.hosts:
            for key, what in held(host.instance.state).items():
                assert host.instance.stands(np.array([CODEC.route_hash((key,))]))[0] == MINE, "a copy was left"
                assert key not in found, "two hosts hold the key"
                found[key] = what
        return found

    def close(self) -> None:
        for host in self.hosts:
            host.log.close()

"""What a target notes of copies: how far they are is the origin's word, not its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from godwit.model.ownership import Ownership
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.runtime import messages
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.instances import HostResources, Instances
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.processor.watchdog import Watch
from godwit.state.changelog import Changelog
from godwit.state.ledger import TIMER_ROW, Entry, with_rows
from tests.unit.test_instance import Sum, instance_of, welcome

UNITS = Units.of(Unit("group", 0))


def test_what_timers_put_out_elsewhere_survives_a_restart_before_it_is_served(tmp_path: Path) -> None:
    """The origin has given away its last unit, so nobody else can tell a lane that is sent again what it was."""
    log, recovered = Changelog.open(tmp_path)
    assert not list(recovered.parts())
    shared = SharedInstance(instance_of(Sum()))
    instance = shared.instance
    instance.memory.ownership = Ownership.initial("host-1", Routing.spread(["host-0"], 4))
    instance.open(BatchRef("q", "r", 0), "0", 0, welcome, carries=False)
    instance.durable.journal = log
    instance.write([instance.define_part(), instance.own_part(), instance.mark_part()])
    port = HostServices("host-1", str(tmp_path), "token", "", log, lambda: 0, lambda: False)
    receiver = Receiver(port, shared, "m1", "host-0")
    schema = with_rows(instance.spec.output_schema)
    outputs = pa.RecordBatch.from_pylist([{schema.names[0]: TIMER_ROW, "key": 1, "total": 7}], schema)
    entry = Entry(np.empty(0, np.int64), np.empty(0, np.int64), outputs)
    info, body = entry.part(instance.name, 0, "0")
    mark, _ = instance.mark_part()
    epochs = dict.fromkeys(UNITS, 1)
    receiver.take(messages.AnnounceStep(0, UNITS, ()), None)
    receiver.take(messages.StepLedger(0, instance.progress, info), pa.py_buffer(body))
    receiver.take(messages.StepEnd(0, UNITS, epochs, (), mark | {"fired": True}), None)
    log.close()

    log, recovered = Changelog.open(tmp_path)
    instances = Instances("host-1", HostResources(log, Watch(lambda _: None), lambda: 0, set))
    for part in recovered.parts():
        instances.recover(part.info, memoryview(part.body))
    again = instances.named(instance.name)
    assert again.instance.batch.fired_elsewhere == [UNITS]
    port = HostServices("host-1", str(tmp_path), "token", "", log, lambda: 0, lambda: False)
    restarted = Receiver(port, again, "m1", "host-0", {0: UNITS})
    restarted.take(messages.StepReleased(0, dict.fromkeys(UNITS, 2)), None)
    assert [batch.column("total").to_pylist() for batch in again.instance.ledger.timer_outputs("0")] == [[7]]
    log.close()


def test_copies_are_as_far_as_their_origin_was(tmp_path: Path) -> None:
    """A target may be a batch ahead: were that taken for theirs, an heir would not read the end of the batch before."""
    log, recovered = Changelog.open(tmp_path)
    assert not list(recovered.parts())
    shared = SharedInstance(instance_of(Sum()))
    shared.instance.memory.ownership = Ownership.initial("host-1", Routing.spread(["host-0"], 4))
    for batch in range(3):
        shared.instance.open(BatchRef("q", "r", batch), "0", 0, welcome)
    port = HostServices("host-1", str(tmp_path), "token", "", log, lambda: 0, lambda: False)
    receiver = Receiver(port, shared, "m1", "host-0", standby=True)
    assert receiver.copied_up_to is None
    receiver.take(messages.AnnounceStep(0, UNITS, ()), None)
    receiver.take(messages.CopyMarker(0, 0, 1), None)
    assert receiver.copied_up_to == 1
    log.close()

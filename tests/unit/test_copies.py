"""What a target notes of copies: how far they are is the origin's word, not its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from godwit.model.ownership import Ownership
from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.model.units import Unit, Units
from godwit.runtime.orders import Port
from godwit.runtime.receiver import Receiver
from godwit.runtime.seat import Seat
from godwit.state.changelog import Changelog
from tests.unit.test_instance import Sum, instance_of, welcome

UNITS = Units.of(Unit("group", 0))


def test_copies_are_as_far_as_their_origin_was(tmp_path: Path) -> None:
    """A target may be a batch ahead: were that taken for theirs, an heir would not read the end of the batch before."""
    log, recovered = Changelog.open(tmp_path)
    assert not list(recovered.parts())
    seat = Seat(instance_of(Sum()))
    seat.instance.own(Ownership.initial("host-1", Routing.spread(["host-0"], 4)))
    for batch in range(3):
        seat.instance.open(BatchRef("q", "r", batch), "0", 0, welcome)
    port = Port("host-1", str(tmp_path), "token", "", log, lambda: 0, lambda: False)
    receiver = Receiver(port, seat, "m1", "host-0", kept=True)
    said: list[dict[str, Any]] = [
        {"kind": "step", "step": 0, "units": UNITS.to_dict()},
        {"kind": "copied", "step": 0, "rows": 0, "batch": 1},
    ]
    assert receiver.following is None
    for note in said:
        receiver.tell(note, None)
    assert receiver.following == 1
    log.close()

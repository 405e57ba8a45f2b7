"""Committed state, read from the hosts of an open flock. A task that waits for a lost host offers its task slot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from godwit.errors import HostUnavailable, from_json
from godwit.model.ownership import Ownership
from godwit.runtime.liveness.leases import check_owner, host_directory, read_lease
from godwit.runtime.liveness.slot_offers import FOR_LEASE_S, SlotOffers, TaskSlot
from godwit.runtime.messages import FetchState, StateOwnership
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.reading.export import rows_of_state
from godwit.runtime.reading.group_reader import PATIENCE_S, GroupReader, HostState, Parts, RowsOf
from godwit.transport import line, typed
from godwit.transport.flight import GONE


@dataclass(frozen=True, slots=True)
class StateReader:
    """`read` reads one of the `parts`. `rows_of`: as for a `GroupReader`."""

    spec: OperatorSpec
    checkpoint: str
    parts: Parts
    committed_batch: int
    incarnation: str
    token: str = field(repr=False)
    patience_s: float = PATIENCE_S
    controller: str = ""
    rows_of: RowsOf = rows_of_state

    def read(self, position: int, attempt: int | None = None) -> Iterator[pa.RecordBatch]:
        """Rows of the keys of one part, with their owners and epochs. `attempt`: the id of the Spark task attempt."""
        offers = SlotOffers(TaskSlot(self.controller, self.token, attempt), FOR_LEASE_S)

        def before_retry() -> None:
            check_owner(self.checkpoint, self.incarnation)
            if offers.taken():
                offers.slot.check()

        reader = GroupReader(
            self.spec, self.checkpoint, self.parts, self._fetch, before_retry, self.patience_s, self.rows_of
        )
        return reader.read(position)

    def _fetch(self, host: str) -> HostState | None:
        """Ownership and state of a host at one moment; None if the host does not serve now."""
        lease = read_lease(host_directory(self.checkpoint, host))
        if lease is None:
            return None
        client = line.connect(lease.address, self.token)
        try:
            schema, batches = typed.fetch(client, FetchState(self.spec.name, self.committed_batch))
            changes = list(batches)
        except GONE as error:
            answer = _error_in(error)
            if answer is None or isinstance(answer, HostUnavailable):
                return None
            raise answer from error
        finally:
            client.close()
        owned = typed.unpack(schema.metadata[StateOwnership.kind.encode()], StateOwnership).ownership
        return None if owned is None else Ownership.from_dict(host, owned), changes


def _error_in(error: BaseException) -> Exception | None:
    """The error that the host has answered with, if any."""
    text: Any = str(error)
    start, end = text.find("{"), text.rfind("}")
    return from_json(text[start : end + 1]) if start >= 0 and '"code"' in text else None

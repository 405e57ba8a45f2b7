"""Committed state, read from the hosts group by group: each key once, also while keys move.

A reader is given groups, and reads each group from its present owner. So several readers that divide all groups among them see
every key once, though they ask the hosts at different moments. A group between two owners is waited for: that takes
milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from godwit import ports
from godwit.errors import HostUnavailable, from_json
from godwit.model.ownership import Ownership, Stand
from godwit.runtime.liveness.leases import check_owner, host_directory, read_lease
from godwit.runtime.liveness.slot_offers import FOR_LEASE_S, SlotOffers, TaskSlot
from godwit.runtime.messages import FetchState, StateOwnership
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.reading.export import rows_of_state
from godwit.runtime.router.routing_table import read_routing
from godwit.state.keys import KeyCodec
from godwit.transport import line, typed
from godwit.transport.flight import GONE

OWNED: Final = frozenset((Stand.MINE, Stand.LENT, Stand.CUT))
PAUSE_S: Final = 0.02
RowsOf = Callable[[OperatorSpec, Iterable[pa.RecordBatch], str, int], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class StateReader:
    """`parts`: hosts, each with the groups that it owned when the reader was made. `read` reads one part.

    `rows_of`: makes rows of the changes of a host; they begin with key columns, host and epoch.
    """

    spec: OperatorSpec
    checkpoint: str
    parts: tuple[tuple[str, frozenset[int]], ...]
    committed_batch: int
    incarnation: str
    token: str = field(repr=False)
    patience_s: float = 30.0
    controller: str = ""
    rows_of: RowsOf = rows_of_state

    def read(self, position: int, attempt: int | None = None) -> Iterator[pa.RecordBatch]:
        """Rows of the keys of one part, with their owners and epochs. `attempt`: the id of the Spark task attempt."""
        host, groups = self.parts[position]
        unread = _Unread(set(groups))
        deadline_s = ports.now_s() + self.patience_s
        hosts = [host]
        offers = SlotOffers(TaskSlot(self.controller, self.token, attempt), FOR_LEASE_S)
        while unread:
            for each in hosts:
                yield from self._read(each, unread)
            if unread:
                self._check_owner()
                self._check_time(unread, deadline_s)
                if offers.claimed():
                    offers.slot.check()
                ports.sleep(PAUSE_S)
                hosts = self._hosts_now(host)

    def _check_owner(self) -> None:
        check_owner(self.checkpoint, self.incarnation)

    def _check_time(self, unread: _Unread, deadline_s: float) -> None:
        if ports.now_s() > deadline_s:
            raise HostUnavailable(
                f"no host serves {unread} after {self.patience_s:g} s",
                todo="Look at flock.status() and flock.history()",
                operator=self.spec.name,
            )

    def _hosts_now(self, host: str) -> list[str]:
        """The hosts of the newest routing table."""
        routing = read_routing(self.checkpoint, self.spec.name)
        known = tuple(name for name, _ in self.parts) if routing is None else routing.hosts
        return list(dict.fromkeys((*known, host)))

    def _read(self, host: str, unread: _Unread) -> Iterator[pa.RecordBatch]:
        state = self._fetch(host)
        if state is None:
            return
        ownership, changes = state
        if ownership is None:  # of an operator whose keys never move
            yield from self.rows_of(self.spec, changes, host, 1)
            unread.clear()
            return
        units = unread.take(ownership)
        if units:
            for rows in self.rows_of(self.spec, changes, host, 1):
                yield self._only(rows, units, ownership)

    def _only(self, rows: pa.RecordBatch, units: _OwnedUnits, ownership: Ownership) -> pa.RecordBatch:
        """The rows of these units: not copies of state that other hosts own, nor units that were read before."""
        codec = KeyCodec(self.spec.key_schema, self.spec.tz)
        hashes = [codec.route_hash(key) for key in codec.from_arrow(rows.columns[: len(self.spec.key_schema)])]
        position = len(self.spec.key_schema) + 1  # after the key columns and the host
        epochs = pa.array([ownership.of(each).epoch for each in hashes], pa.int64())
        columns = [epochs if i == position else column for i, column in enumerate(rows.columns)]
        mine = pa.array([units.has(each, ownership) for each in hashes], pa.bool_())
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema).filter(mine)

    def _fetch(self, host: str) -> tuple[Ownership | None, list[pa.RecordBatch]] | None:
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


@dataclass(slots=True)
class _OwnedUnits:
    """Units that are read from one host."""

    groups: set[int]
    keys: set[int]

    def __bool__(self) -> bool:
        return bool(self.groups or self.keys)

    def has(self, route_hash: int, ownership: Ownership) -> bool:
        included = route_hash in self.keys or route_hash % len(ownership.groups) in self.groups
        return included and ownership.of(route_hash).stand in OWNED


@dataclass(slots=True)
class _Unread:
    """Units that are still to be read: groups, and keys apart from groups that have been read."""

    groups: set[int]
    keys: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.groups or self.keys)

    def __str__(self) -> str:
        return f"{len(self.groups)} groups and {len(self.keys)} single keys"

    def clear(self) -> None:
        self.groups.clear()
        self.keys.clear()

    def take(self, ownership: Ownership) -> _OwnedUnits:
        """The unread units that this host owns.

        The owner of a group knows which keys are apart from it: those that another host owns are still to be read.
        """
        groups = {group for group in self.groups if ownership.groups[group].stand in OWNED}
        keys = {key for key in self.keys if ownership.of(key).stand in OWNED}
        apart = {
            key
            for key, share in ownership.keys.items()
            if key % len(ownership.groups) in groups and share.stand not in OWNED
        }
        self.groups -= groups
        self.keys = self.keys - keys | apart
        return _OwnedUnits(groups, keys)


def _error_in(error: BaseException) -> Exception | None:
    """The error that the host has answered with, if any."""
    text: Any = str(error)
    start, end = text.find("{"), text.rfind("}")
    return from_json(text[start : end + 1]) if start >= 0 and '"code"' in text else None

"""Reads committed state group by group, each from its present owner: each key once, also while keys move.

Several readers that divide all groups among them see every key once, though they ask the owners at different moments. A group
between two owners is waited for: that takes milliseconds. Where the state of a host comes from is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa

from godwit import ports
from godwit.errors import HostUnavailable
from godwit.model.ownership import Ownership, Stand
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.reading.export import rows_of_state
from godwit.runtime.router.routing_table import read_routing
from godwit.state.keys import KeyCodec

OWNED: Final = frozenset((Stand.MINE, Stand.LENT, Stand.CUT))
PAUSE_S: Final = 0.02
PATIENCE_S: Final = 30.0
Parts: TypeAlias = tuple[tuple[str, frozenset[int]], ...]  # hosts, each with the groups that it owned when asked
# Ownership and changes of a host at one moment. The ownership is None for an operator whose keys never move.
HostState: TypeAlias = tuple[Ownership | None, list[pa.RecordBatch]]
RowsOf: TypeAlias = Callable[[OperatorSpec, Iterable[pa.RecordBatch], str, int], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class GroupReader:
    """`fetch`: the state of a host; None if the host cannot give it now. `before_retry` may end the wait with an error.

    `rows_of`: makes rows of the changes of a host; they begin with key columns, host and epoch.
    """

    spec: OperatorSpec
    checkpoint: str
    parts: Parts
    fetch: Callable[[str], HostState | None]
    before_retry: Callable[[], None]
    patience_s: float = PATIENCE_S
    rows_of: RowsOf = rows_of_state

    def read(self, position: int) -> Iterator[pa.RecordBatch]:
        """Rows of the keys of one part, with their owners and epochs."""
        host, groups = self.parts[position]
        unread = _Unread(set(groups))
        deadline_s = ports.now_s() + self.patience_s
        hosts = [host]
        while unread:
            for each in hosts:
                yield from self._read(each, unread)
            if unread:
                self.before_retry()
                self._check_time(unread, deadline_s)
                ports.sleep(PAUSE_S)
                hosts = self._hosts_now(host)

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
        state = self.fetch(host)
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

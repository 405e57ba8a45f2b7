"""How all rows of a slice get applied: rows that a host refuses go to their owner, round by round.

This is late binding: the routing table may be old, because a host that does not own a key names the owner. A
refusal updates the table. This module never decides who owns a key, only which host to ask next; asking the wrong host costs a
round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit import ports
from godwit.errors import HostUnavailable
from godwit.runtime.processor.rows import Index
from godwit.runtime.router.host_requests import RowsRequest, by_row, hashes_of
from godwit.runtime.router.links import Links
from godwit.runtime.router.route import Route
from godwit.runtime.router.routing_table import OwnerTable, RoutingFile

ROUNDS_FREE = 4  # a chain of hints is rarely longer; after that, hosts get time to agree
PAUSE_MIN_S, PAUSE_MAX_S = 0.002, 0.05
NOBODY = -1

Positions = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Refusal:
    """Rows that a host has refused, with its hints; or rows that no host has answered (`by` is None)."""

    rows: pa.RecordBatch
    by: str | None
    again: bool  # the rows were sent when the table had already learnt from an earlier refusal
    hints: OwnerTable
    file_version: int | None = None

    @property
    def hashes(self) -> Index:
        return hashes_of(self.rows)


class Rounds:
    def __init__(self, route: Route, table: OwnerTable, links: Links, file: RoutingFile) -> None:
        self._route = route
        self._table = table
        self._links = links
        self._file = file
        self.learnt = False  # whether the table has changed; the router resets this

    def apply_all(self, lane: str, requests: Sequence[RowsRequest]) -> list[pa.RecordBatch]:
        """Wait until every row of a slice has been applied at some host; returns the outputs."""
        sent, waiting = list(requests), list(requests)
        outputs: list[pa.RecordBatch] = []
        pauses: _Pauses | None = None
        unowned: list[_Refusal] = []
        while waiting or unowned:
            for request in waiting:
                self._links.receive(request)
                outputs += _take_outputs(request)
            refused = [*unowned, *self._refusals(waiting)]
            if not refused:
                break
            pauses = pauses or _Pauses(self._route.wait_s)
            waiting, unowned = self._send_round(lane, refused)
            sent += waiting
            if pauses.wait(free=bool(waiting)):
                raise self._no_owner(unowned or refused)
        for request in sent:
            request.dealt_with = True
        return outputs

    def _refusals(self, requests: Sequence[RowsRequest]) -> list[_Refusal]:
        """The unapplied rows of these requests; the table learns from all refusals before any row is sent on."""
        unapplied = [request for request in requests if request.refused is not None or request.unsent]
        if not unapplied:
            return []
        self.learnt = True
        file = self._file.table()
        if file is not None and file.version > self._table.version:
            self._table.absorb(file)
        no_hints = self._table.hints((), ())
        unsent = [_Refusal(rows, None, request.again, no_hints) for request in unapplied for rows in request.unsent]
        return [*unsent, *(self._learn(request) for request in unapplied if request.refused is not None)]

    def _learn(self, request: RowsRequest) -> _Refusal:
        assert request.refused is not None
        hints = self._table.hints(request.groups, request.keys)
        refusal = _Refusal(request.refused, request.host, request.again, hints)
        self._table.learn(request.groups, request.keys)
        with_group = refusal.hashes[~hints.apart(refusal.hashes)]
        self._table.forget_apart(with_group, hints.epochs(with_group))
        return refusal

    def _send_round(self, lane: str, refused: Sequence[_Refusal]) -> tuple[list[RowsRequest], list[_Refusal]]:
        """Send all rows of which an owner is known; return those requests, and the other rows."""
        by_owner: dict[int, list[pa.RecordBatch]] = {}
        unowned: list[_Refusal] = []
        for refusal in refused:
            owners = self._locate(refusal)
            for owner in np.unique(owners).tolist():
                rows = refusal.rows.filter(pa.array(owners == owner))
                if owner == NOBODY:
                    unowned.append(replace(refusal, rows=rows))
                else:
                    by_owner.setdefault(owner, []).append(rows)
        hosts = self._table.hosts
        self._links.open(hosts[owner] for owner in by_owner)
        requests = [RowsRequest(hosts[owner], lane, by_row(rows), again=True) for owner, rows in by_owner.items()]
        for request in requests:
            self._links.send(request)
        return requests, unowned

    def _locate(self, refusal: _Refusal) -> Positions:
        """Which host to ask for each refused row, as positions in the table's hosts."""
        hashes = refusal.hashes
        by = NOBODY if refusal.by is None else self._table.position(refusal.by)
        retired = [self._table.position(host) for host in self._links.retired()]
        owners = self._table.owners(hashes)
        stuck = np.isin(owners, [by, *retired])
        if not stuck.any():
            return owners
        stuck[stuck] = ~self._follow(refusal, hashes[stuck], by, retired)
        if stuck.any():
            stuck[stuck] = ~self._look_up(refusal, hashes[stuck], by, retired)
        owners = self._table.owners(hashes)
        owners[stuck] = NOBODY
        return owners

    def _follow(self, refusal: _Refusal, hashes: Index, by: int, retired: list[int]) -> Flags:
        """For rows whose owner in the table has refused them: take the owner from its hint. Returns where that is possible.

        The hint may be no newer than the table: state that is lent keeps its epoch, and a host to which state was only
        promised never had another epoch. But if the rows were sent before the table had learnt, the refusal may be older than
        the table.
        """
        hinted = refusal.hints.owners(hashes)
        usable = (hinted != NOBODY) & ~np.isin(hinted, retired)
        stay = usable & (hinted == by)  # the host refused the rows to keep their order, or has got the keys since
        if not refusal.again and by not in retired:
            stay |= usable & (refusal.hints.epochs(hashes) < self._table.epochs(hashes))
        change = usable & ~stay
        self._table.correct(hashes[change], [by, *retired], refusal.hints)
        followed: Flags = stay | change
        return followed

    def _look_up(self, refusal: _Refusal, hashes: Index, by: int, retired: list[int]) -> Flags:
        """For rows without a usable hint: take the owner from the file, if it names another host or has changed since."""
        file = self._file.table()
        if file is None:
            return np.zeros(len(hashes), np.bool_)
        if refusal.file_version is None:
            refusal.file_version = file.version
        denied = retired if file.version > refusal.file_version else [by, *retired]
        position = np.array([self._table.position(host) for host in file.hosts], np.int32)
        named: Flags = ~np.isin(position[file.owners(hashes)], denied)
        self._table.correct(hashes[named], [by, *retired], file)
        return named

    def _no_owner(self, refused: Sequence[_Refusal]) -> HostUnavailable:
        """Spark retries the task, and by then the hosts may agree."""
        group = int(self._table.group(refused[0].hashes)[0])
        last = "" if refused[0].by is None else f"; {refused[0].by} refused them last"
        return HostUnavailable(
            f"no host has taken rows of group {group} for {self._route.wait_s:g} s{last}",
            todo=f"Look at flock.routing({self._route.operator!r}) and flock.history(); the task is retried by Spark",
            operator=self._route.operator,
            group=group,
        )


class _Pauses:
    """Growing pauses between rounds. Only the pauses count against the waiting time, not the hosts' time to answer."""

    def __init__(self, wait_s: float) -> None:
        self._rounds = 0
        self._left_s = wait_s
        self._pause_s = PAUSE_MIN_S

    def wait(self, free: bool) -> bool:
        """Before the next round; no pause in the first rounds if rows are under way. True if the time is used up."""
        self._rounds += 1
        if free and self._rounds < ROUNDS_FREE:
            return False
        ports.sleep(self._pause_s)
        self._left_s -= self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        return self._left_s < 0


def _take_outputs(request: RowsRequest) -> list[pa.RecordBatch]:
    outputs, request.outputs = request.outputs, None
    return [] if outputs is None or not len(outputs) else [outputs]

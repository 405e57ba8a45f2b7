"""A router's links, by host: opened all at once or as hosts turn up, and finished together.

Also decides when a host counts as gone for good: the routing file no longer has it. A host that is in the file and not up is
waited for, however long that takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from godwit.runtime.liveness.wills import batch_lost
from godwit.runtime.router.link import Link
from godwit.runtime.router.pieces import Piece
from godwit.runtime.router.route import Route, Task
from godwit.runtime.router.routing_table import OwnerTable, RoutingFile


class Links:
    def __init__(self, route: Route, task: Task, schema: pa.Schema, file: RoutingFile, table: OwnerTable) -> None:
        self._route = route
        self._task = task
        self._schema = schema
        self._file = file
        self._known = frozenset(table.hosts)
        self._version = table.version
        self._links: dict[str, Link] = {}

    def begin(self, hosts: Iterable[str]) -> None:
        """Every host there is begins the batch, before the first row leaves: then no timers are left that could fire in it.

        Outputs of timers leave before all rows, so that a retry puts them in the same place. Of a host that was lost before
        its answer was read, heirs have timers that have not fired, or outputs for this lane: as soon as they have taken over
        they tell whoever opens them, so all are opened again. And a host that has joined meanwhile may have got keys before
        the batch had begun anywhere.
        """
        self._open(hosts, self._task)
        while self._route.timers:
            missed = any(link.missed for link in self._links.values())
            if missed:
                self._open_again()
            joined = [host for host in self._hosts_now() if host not in self._links]
            if not missed and not joined:
                return
            self._open(joined, self._task)

    def check_committed(self) -> None:
        """A batch that has come and gone at one host has done so at all, unless a machine was lost with the end of a log."""
        before = {
            link.host: link.begun.get("before") for link in self._links.values() if link.begun and not link.retired
        }
        had = {host: batch for host, batch in before.items() if batch is not None}
        behind = [host for host, batch in had.items() if batch < max(had.values())]
        if behind:
            raise batch_lost(behind[0], self._route.operator, had[behind[0]], max(had.values()))

    def _open_again(self) -> None:
        there = [link for link in self._links.values() if not link.retired]
        for link in self._links.values():
            link.missed = False
        for link in there:
            link.hang_up()
        for link in there:
            link.reach()
        for link in there:
            link.connect()

    def open(self, hosts: Iterable[str]) -> None:
        """Those that are not open yet: they have joined since the batch began, so none of their timers is due in it."""
        self._open(hosts, replace(self._task, carries=False))

    def _open(self, hosts: Iterable[str], task: Task) -> None:
        """All are asked before the first answer is waited for."""
        new = [Link(host, self._route, task, self._schema, self._left) for host in hosts if host not in self._links]
        self._links |= {link.host: link for link in new}
        if self._route.timers:  # where no batch begins while a host is away, its timers fire with all others
            for link in new:
                link.meet()
        for link in new:
            link.reach()
        for link in new:
            link.connect()

    def _hosts_now(self) -> Sequence[str]:
        routing = self._file.read()
        return () if routing is None else routing.hosts

    def _left(self, host: str) -> bool:
        """A host joins the file before anybody hears of it, so one that is neither there nor in our first table was there."""
        routing = self._file.read()
        if routing is None or host in routing.hosts:
            return False
        return routing.version > self._version or host not in self._known

    def retired(self) -> list[str]:
        return [host for host, link in self._links.items() if link.retired]

    def timers(self) -> list[pa.RecordBatch]:
        """What timers have put out at the hosts that are open, in the same order whoever tells it.

        What a host has told that was lost after that, its heirs may tell too.
        """
        fired: dict[str, pa.RecordBatch] = {}
        for link in self._links.values():
            fired |= link.timers
        return [fired[name] for name in sorted(fired)]

    def begun(self) -> list[dict[str, Any]]:
        """How the hosts that are open have begun the batch."""
        return [link.begun for link in self._links.values() if link.begun is not None]

    def send(self, piece: Piece) -> None:
        self._links[piece.host].send(piece)

    def receive(self, piece: Piece) -> None:
        self._links[piece.host].receive(piece)

    def finish(self, rows: int | None, event_max_ms: int | None) -> None:
        """Every host makes the lane's work durable; also those that have got keys of ours from the hosts we know."""
        unfinished: Sequence[str] = list(self._links)
        while unfinished:
            hosts = list(self._links)
            asked = [(self._links[host], self._links[host].finish(rows, event_max_ms, hosts)) for host in unfinished]
            for link, message in asked:
                link.receive(message)
            unfinished = list(dict.fromkeys(host for _, m in asked for host in m.also if host not in self._links))
            self.open(unfinished)

    def close(self) -> None:
        for link in self._links.values():
            link.close()

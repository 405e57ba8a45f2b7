"""A router's links, by host: opened all at once or as hosts turn up, and finished together.

Also decides when a host counts as gone for good: the routing file no longer names it. A host that is in the file and not up is
waited for, up to the route's waiting time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from godwit.runtime.liveness.wills import batch_lost
from godwit.runtime.messages import FireTimers, LaneOpened
from godwit.runtime.router.host_requests import RowsRequest
from godwit.runtime.router.link import Link
from godwit.runtime.router.route import Route, Task
from godwit.runtime.router.routing_table import OwnerTable, RoutingFile
from godwit.state.ledger import numbered_firing


class Links:
    def __init__(self, route: Route, task: Task, schema: pa.Schema, file: RoutingFile, table: OwnerTable) -> None:
        self._route = route
        self._task = task
        self._schema = schema
        self._file = file
        self._known = frozenset(table.hosts)
        self._version = table.version
        self._links: dict[str, Link] = {}
        self._known_firings: dict[str, int] = {}  # in real time: the last firing of each host whose outputs have left

    def begin(self, hosts: Iterable[str]) -> None:
        """Every host begins the batch before the first row leaves: after that, no timer is left that could fire in the batch.

        Outputs of timers leave before all rows, so that a retry puts them in the same place. If a host was lost before its
        answer was read, its heirs have timers that have not fired, or outputs for this lane. Heirs send those to every lane
        that opens after the takeover, so all hosts are opened again. A host that has joined meanwhile is opened too: keys may
        have moved there before the batch had begun anywhere.
        """
        self._open(hosts, self._task)
        while self._route.timers_between_batches:
            missed = any(link.missed for link in self._links.values())
            if missed:
                self._open_again()
            joined = [host for host in self._hosts_now() if host not in self._links]
            if not missed and not joined:
                return
            self._open(joined, self._task)

    def check_committed(self) -> None:
        """A batch that was completed at one host was completed at all, unless a machine was lost with the end of a log."""
        live = [link for link in self._links.values() if not link.retired]
        before = {
            link.host: link.opened.before for link in live if link.opened is not None and link.opened.before is not None
        }
        newest = max(before.values(), default=None)
        for host, batch in before.items():
            if newest is not None and batch < newest:
                raise batch_lost(host, self._route.operator, batch, newest)

    def _open_again(self) -> None:
        live = [link for link in self._links.values() if not link.retired]
        for link in self._links.values():
            link.missed = False
        for link in live:
            link.hang_up()
        _connect(live)

    def open(self, hosts: Iterable[str]) -> None:
        """Hosts that are not open yet have joined since the batch began, so they have not fired timers for this lane."""
        self._open(hosts, replace(self._task, carries=False))

    def _open(self, hosts: Iterable[str], task: Task) -> None:
        new = [Link(host, self._route, task, self._schema, self._left) for host in hosts if host not in self._links]
        self._links |= {link.host: link for link in new}
        if self._route.timers_between_batches:
            for link in new:  # a batch does not begin while a host is away, so timers of all hosts fire together
                link.meet()
        _connect(new)

    def _hosts_now(self) -> Sequence[str]:
        routing = self._file.read()
        return () if routing is None else routing.hosts

    def _left(self, host: str) -> bool:
        """Whether the host has left for good.

        A host is written to the file before any router hears of it. So a host that is neither in the file nor in the first
        table of this router was in the file in between.
        """
        routing = self._file.read()
        if routing is None or host in routing.hosts:
            return False
        return routing.version > self._version or host not in self._known

    def retired(self) -> list[str]:
        return [host for host, link in self._links.items() if link.retired]

    def timers(self) -> list[pa.RecordBatch]:
        """The outputs of timers of all hosts, in an order that does not depend on which host sends them.

        If a host was lost after it had sent its outputs, its heirs may send the same firings again; each is taken once.
        """
        fired: dict[str, pa.RecordBatch] = {}
        for link in self._links.values():
            fired |= link.timers
        for host, number in map(numbered_firing, fired):
            self._known_firings[host] = max(number, self._known_firings.get(host, 0))
        return [fired[name] for name in sorted(fired)]

    def fire_timers(self) -> None:
        """The lane, made by key, has no more rows: all hosts fire the timers of its keys.

        Keys may move meanwhile. A host from which keys have left before their timers had fired names the host that has got
        them, and that host is asked again, once for each step: keys may go back and forth. If a host was away, all are asked
        again: its heirs may have answered before.
        """
        followed: set[str] = set()
        for link in self._links.values():
            link.missed = False
        hosts: Sequence[str] = list(dict.fromkeys((*self._links, *self._hosts_now())))
        while hosts:
            self.open(hosts)
            requests = [self._links[host].fire(FireTimers()) for host in hosts]
            for host, request in zip(hosts, requests, strict=True):
                self._links[host].receive(request)
            if any(link.missed for link in self._links.values()):
                for link in self._links.values():
                    link.missed = False
                joined = [host for host in self._hosts_now() if host not in self._links]
                hosts = [*(host for host, link in self._links.items() if not link.retired), *joined]
            else:
                steps = {step: host for request in requests for step, host in request.ask_also if step not in followed}
                followed |= steps.keys()
                hosts = list(dict.fromkeys(steps.values()))

    def fire_due(self, event_max_ms: int | None) -> list[pa.RecordBatch]:
        """In real time: all hosts fire timers that are due now. Returns the outputs of firings that are new here, in order.

        A key that is between two owners fires at its next owner, when that one is asked again. Hosts number their firings, and
        heirs of a lost host have its firings under its name.
        """
        hosts = list(dict.fromkeys((*self._links, *self._hosts_now())))
        self.open(hosts)
        links = [self._links[host] for host in hosts if not self._links[host].retired]
        message = FireTimers(True, event_max_ms, tuple(self._known_firings.items()))
        for link, request in [(link, link.fire(message)) for link in links]:
            link.receive(request)
        new: dict[tuple[str, int], pa.RecordBatch] = {}
        for link in links:
            for name, outputs in link.timers.items():
                host, number = numbered_firing(name)
                if number > self._known_firings.get(host, 0):
                    new[host, number] = outputs
            link.timers.clear()
        for host, number in new:
            self._known_firings[host] = max(number, self._known_firings.get(host, 0))
        return [new[firing] for firing in sorted(new)]

    def opened(self) -> list[LaneOpened]:
        """How the open hosts have begun the batch."""
        return [link.opened for link in self._links.values() if link.opened is not None]

    def send(self, request: RowsRequest) -> None:
        self._links[request.host].send(request)

    def receive(self, request: RowsRequest) -> None:
        self._links[request.host].receive(request)

    def finish(self, rows: int | None, event_max_ms: int | None) -> None:
        """Every host makes the lane's work durable; also hosts that have joined since and got keys from the open ones."""
        unfinished: Sequence[str] = list(self._links)
        while unfinished:
            hosts = list(self._links)
            requests = [(self._links[host], self._links[host].finish(rows, event_max_ms, hosts)) for host in unfinished]
            for link, request in requests:
                link.receive(request)
            further = [host for _, request in requests for host in request.further_hosts]
            unfinished = list(dict.fromkeys(host for host in further if host not in self._links))
            self.open(unfinished)

    def close(self) -> None:
        for link in self._links.values():
            link.close()


def _connect(links: Sequence[Link]) -> None:
    """All hosts are asked before the first answer is awaited."""
    for link in links:
        link.reach()
    for link in links:
        link.connect()

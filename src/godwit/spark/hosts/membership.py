"""Hosts that join and leave: a host joins before it gets keys, and leaves when it has none.

A host that joins is put on the roster and started, and takes over batch and watermark from an older host. Then it is put in the
tables that routers read, and all hosts get the new roster. A host that leaves owns nothing when it is stopped, and all of its
hand-overs are confirmed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from godwit.errors import HostUnavailable, InvariantBroken
from godwit.runtime.backup.records import Records
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.liveness.wills import read_will
from godwit.runtime.messages import AdoptMarks, Define, GetMarks, OperatorDefinition, SetRoster, TidyBackups
from godwit.runtime.processor.undefined_operator import undefined_operator
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.checkpoint.history import History
from godwit.spark.hosts.flock_hosts import Hosts
from godwit.spark.hosts.owner_tables import OwnerTables

ASK_GAP_S = 0.02
_log = logging.getLogger("godwit.hosts")


class Membership:
    """`check_slots` refuses more hosts than Spark has slots for; `stop_queries` stops the queries that use the flock."""

    def __init__(
        self,
        directory: FlockDirectory,
        hosts: Hosts,
        tables: OwnerTables,
        history: History,
        check_slots: Callable[[int], None],
        stop_queries: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._hosts = hosts
        self._tables = tables
        self._history = history
        self.changing = threading.RLock()  # no operator is defined while a host joins or leaves
        self.check_slots = check_slots
        self._stop_queries = stop_queries

    def hosts(self) -> tuple[str, ...]:
        return self._directory.roster()

    def next_hosts(self, count: int) -> list[str]:
        return self._directory.next_hosts(count)

    # -- opening -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the hosts of the roster, and rebuild the tables from their answers."""
        lost = [host for host in self.hosts() if read_will(self._host_directory(host)) is not None]
        if lost:  # the last application ended right after a takeover of their keys
            self._directory.write_roster([host for host in self.hosts() if host not in lost])
        self._hosts.start(self.hosts())
        for host in lost:
            self._wait_inherited(host)
        self._end_backups(lost)
        self._tables.rebuild()
        self._even_definitions()
        self._even_marks(self.hosts())
        self.tell_roster()

    def _host_directory(self, host: str) -> Path:
        return host_directory(str(self._directory.path), host)

    def _wait_inherited(self, lost: str) -> None:
        """Wait until heirs that were down have read the will of the lost host, and own what it gives them."""
        will = read_will(self._host_directory(lost))
        for heir, share in {} if will is None else will[1].items():
            for operator in share if heir in self.hosts() else ():
                own = self._tables.ask(heir, operator)
                while own is not None and any(step.origin == lost for step in own.incoming.values()):
                    self._hosts.closing.wait(ASK_GAP_S)
                    own = self._tables.ask(heir, operator)

    # -- joining and leaving -----------------------------------------------------------------------------------------

    def lost(self, name: str) -> None:
        """Remove a lost host whose keys have other owners. Routers go on as soon as no table names it.

        The host is forgotten before the roster changes: a thread that holds `changing` for a join may wait for this host.
        """
        self._tables.parted([name])
        self._hosts.remove(name)
        with self.changing:
            self._directory.write_roster([host for host in self.hosts() if host != name])
        self._end_backups([name])

    def join(self, names: Sequence[str]) -> None:
        with self.changing:
            before = self.hosts()
            self._directory.write_roster([*before, *names])
            try:
                self._hosts.start(names)
                self._even_marks([*before, *names])
            except BaseException:
                self._hosts.stop(names)
                self._directory.write_roster(before)
                raise
            self._tables.joined(names)
        self.tell_roster()
        self._history.add("joined", hosts=list(names))
        _log.info("%s joined the flock in %s", ", ".join(names), self._directory.path)

    def leave(self, names: Sequence[str]) -> bool:
        """Stop these hosts; False, and nothing happens, if they still own something."""
        with self.changing:
            if any(self._tables.owned(name) for name in names):
                return False
            for name in names:
                self._wait_settled(name)
            self._tables.parted(names)
            self._directory.write_roster([host for host in self.hosts() if host not in names])
        self.tell_roster()
        self._hosts.stop(names)
        self._history.add("left", hosts=list(names))
        _log.info("%s left the flock in %s", ", ".join(names), self._directory.path)
        self._end_backups(names)
        return True

    def _end_backups(self, names: Sequence[str]) -> None:
        """End the backups of these hosts, and let their peers delete them."""
        for name in names:
            Records(str(self._directory.path), name).end()
        for host in self.hosts():
            with suppress(HostUnavailable):
                self._hosts.ask_now(host, TidyBackups())

    def _wait_settled(self, host: str) -> None:
        """Wait until all hand-overs of the host are confirmed: until then only its log tells who owns the units."""
        for operator in self._tables.names():
            own = self._tables.ask(host, operator)
            while own is not None and (own.outgoing or own.incoming):
                self._hosts.closing.wait(ASK_GAP_S)
                own = self._tables.ask(host, operator)
            if own is not None and own.mine():
                raise InvariantBroken(f"{host} still owns {len(own.mine())} units that the table gives to others")

    def _even_definitions(self) -> None:
        """Let all hosts have state in the form of the newest definition.

        If the last application ended while it defined an operator again, some hosts have the definition before, and could not
        take state of the others.
        """
        recorded = {name: self._directory.operator(name) for name in self._directory.operators()}
        changed = [name for name, record in recorded.items() if record is not None and record[0].changed]
        for host in self.hosts() if changed else ():
            self._introduce(host, changed)

    def _even_marks(self, names: Sequence[str]) -> None:
        """Hosts without batches of an operator take over batch and watermark from the host with the newest batch."""
        marks = {name: self._hosts.ask(name, GetMarks()).marks for name in names}
        newest: dict[str, Any] = {}
        for known in marks.values():
            for operator, mark in known.items():
                if operator not in newest or mark["batch"] > newest[operator]["batch"]:
                    newest[operator] = mark
        for name, known in marks.items():
            self._introduce(name, [operator for operator in newest if operator not in known])
            lacking = {
                op: mark for op, mark in newest.items() if op not in known or known[op]["batch"] < 0 <= mark["batch"]
            }
            if lacking:
                self._hosts.ask(name, AdoptMarks(lacking))

    def _introduce(self, name: str, operators: Sequence[str]) -> None:
        """Let a new host have state of operators that were not defined since the flock was opened."""
        for operator in operators:
            recorded = self._directory.operator(operator)
            if recorded is not None:
                definition = OperatorDefinition.of(undefined_operator(recorded[0]), self._tables.table(operator))
                self._hosts.ask(name, Define(definition))

    def tell_roster(self) -> None:
        """Send the roster to all hosts. A host that is down reads it when it starts; a lost host does not need it."""
        names = tuple(self.hosts())
        for name in names:
            with suppress(HostUnavailable):
                self._hosts.ask(name, SetRoster(names))

    # -- all at once -------------------------------------------------------------------------------------------------

    def stop_all(self) -> None:
        self._stop_queries()
        self._hosts.stop(self._hosts.names())

    def start_all(self) -> None:
        self._hosts.start(self.hosts())

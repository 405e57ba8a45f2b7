"""The parts that everything which changes an open flock needs: its directory, its history, its hosts and its tables."""

from __future__ import annotations

from dataclasses import dataclass

from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.checkpoint.history import History
from godwit.spark.hosts.flock_hosts import Hosts
from godwit.spark.hosts.membership import Membership
from godwit.spark.hosts.owner_tables import OwnerTables


@dataclass(frozen=True, slots=True)
class FlockParts:
    directory: FlockDirectory
    history: History
    hosts: Hosts
    tables: OwnerTables
    members: Membership

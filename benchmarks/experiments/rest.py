"""What a query pays while nothing moves: for the support for moving keys (I7), and for backups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from benchmarks.experiments.pairs import compared
from benchmarks.inside.switched_off import without_ownership
from benchmarks.running.settings import Settings
from benchmarks.running.watch import Watch


def rest(settings: Settings, runs: int, batches: int, batch_rows: int, watch: Watch) -> Iterator[dict[str, Any]]:
    return compared("rest", "support", without_ownership, settings, runs, batches, batch_rows, watch)


def backup(settings: Settings, runs: int, batches: int, batch_rows: int, watch: Watch) -> Iterator[dict[str, Any]]:
    given = {"backup": True}
    return compared("backup", "backups", nullcontext, settings, runs, batches, batch_rows, watch, given)

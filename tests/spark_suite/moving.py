"""Keys that move all the time: those of one host go to the other host, then all to the first, until `stop`."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

import godwit
from godwit.control.moves import groups_in
from godwit.errors import GodwitError


class Moving:
    def __init__(self, flock: godwit.Flock, operators: Sequence[str], protocol: str) -> None:
        self._flock, self._operators, self._protocol = flock, operators, protocol
        self._stopping = threading.Event()
        self.moves = 0
        self.failure: GodwitError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for turn in itertools.count():
            to = f"host-{turn % 2}"
            for operator in self._operators:
                if self._stopping.is_set():
                    return
                rows = self._flock.routing(operator)
                groups = [group for row in rows if row["host"] != to for group in groups_in(row["groups"])]
                if groups:
                    self._move(operator, groups, to)

    def _move(self, operator: str, groups: list[int], to: str) -> None:
        try:
            if self._protocol == "standby":
                self._flock.standby(operator, groups=groups, to=to)
            self._flock.move(operator, groups=groups, to=to, protocol=self._protocol)
            self.moves += 1
        except GodwitError as error:
            if not self._stopping.is_set() and error.code != "GODWIT-MOVE-CONFLICT":
                self.failure = error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a move does not end"
        if self.failure is not None:
            raise self.failure

"""The controller's side of the wire: hosts register, take operator definitions, and ask whether a run is the newest.

It holds no state that cannot be found again in the checkpoint or asked of Spark; the data path goes on while it is away.
What a run is, only Spark knows: that question is handed to the callbacks given here.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from godwit import ports
from godwit.errors import GodwitError, from_json
from godwit.model.routing import Routing
from godwit.runtime.processor.spec import Operator
from godwit.transport import line


@dataclass(frozen=True, slots=True)
class Registered:
    """A host as it last announced itself."""

    host: str
    generation: int
    address: str
    pid: int
    load_s: float
    at_s: float


class Controller:
    def __init__(
        self,
        bind: str,
        token: str,
        admit: Callable[[dict[str, Any]], None],
        active_scopes: Callable[[], list[str]],
        lost: Callable[[str], bool] = lambda _: False,
        address: str | None = None,
        backup_peer: Callable[[str], str | None] = lambda _: None,
        restored: Callable[[str], None] = lambda _: None,
        waits: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`address`: under which hosts reach it, if not the one it listens on. `restored`: told of a host from a backup.

        `waits`: a Spark task waits for a host; whether Spark has been asked to end that task.
        """
        self._operators: dict[str, tuple[Operator, Routing | None]] = {}
        self._hosts: dict[str, Registered] = {}
        self._failures: dict[str, GodwitError] = {}
        self._changed = ports.condition()
        self._admit = admit
        self._active_scopes = active_scopes
        self._lost = lost
        self._backup_peer = backup_peer
        self._restored = restored
        actions = {
            "register": self._action_register,
            "failed": self._action_failed,
            "lost": self._action_lost,
            "definitions": self._action_definitions,
            "admit": self._action_admit,
            "active_scopes": lambda _: {"scopes": self._active_scopes()},
            "waits": lambda request: {"leave": waits(request["attempt"])},
            "backup_peer": lambda request: {"peer": self._backup_peer(request["host"])},
        }
        self._service = line.listen(bind, token, actions)
        self.address = f"{address or bind}:{self._service.port}"

    # -- what the driver does ----------------------------------------------------------------------------------------

    def add(self, operator: Operator, routing: Routing | None = None) -> None:
        """Hosts start from that table what they have no record of."""
        with self._changed:
            self._operators[operator.spec.name] = (operator, routing)

    def remove(self, name: str) -> None:
        with self._changed:
            self._operators.pop(name, None)

    def hosts(self) -> dict[str, Registered]:
        with self._changed:
            return dict(self._hosts)

    def failure(self, host: str) -> GodwitError | None:
        with self._changed:
            return self._failures.get(host)

    def wait_hosts(self, names: list[str], timeout_s: float) -> list[str]:
        """Wait until all are registered; gives the names of those that are not. A host's own error is raised."""
        deadline = ports.now_s() + timeout_s
        with self._changed:
            while True:
                for name in names:
                    if name in self._failures:
                        raise self._failures[name]
                missing = [name for name in names if name not in self._hosts]
                left_s = deadline - ports.now_s()
                if not missing or left_s <= 0:
                    return missing
                self._changed.wait(left_s)

    def wait_newer(self, host: str, generation: int, timeout_s: float) -> None:
        """Until a later generation of the host has registered, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._generation(host) > generation, timeout_s)

    def _generation(self, host: str) -> int:
        return self._hosts[host].generation if host in self._hosts else 0

    def forget(self, host: str) -> None:
        """The host was stopped on purpose; its address is nobody's now."""
        with self._changed:
            self._hosts.pop(host, None)
            self._failures.pop(host, None)

    def gave_up(self, host: str, error: GodwitError) -> None:
        """It is not started again. What it has said of that itself is worth more."""
        with self._changed:
            self._failures.setdefault(host, error)
            self._changed.notify_all()

    def close(self) -> None:
        self._service.stop(2.0)

    # -- what hosts ask ----------------------------------------------------------------------------------------------

    def _action_register(self, request: dict[str, Any]) -> dict[str, Any]:
        names = ("host", "generation", "address", "pid", "load_s")
        fields: dict[str, Any] = {name: request[name] for name in names}
        registered = Registered(**fields, at_s=ports.now_s())
        with self._changed:
            self._hosts[registered.host] = registered
            self._failures.pop(registered.host, None)
            self._changed.notify_all()
        if request.get("restored"):
            self._restored(registered.host)
        return {}

    def _action_failed(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._changed:
            if 0 < request["generation"] < self._generation(request["host"]):
                return {}  # of a process that was given up, and has a successor
            self._failures[request["host"]] = from_json(request["error"])
            self._changed.notify_all()
        return {}

    def _action_lost(self, request: dict[str, Any]) -> dict[str, Any]:
        """A host that is being started again asks whether it is still needed."""
        return {"taken_over": self._lost(request["host"])}

    def _action_definitions(self, _: dict[str, Any]) -> dict[str, Any]:
        with self._changed:
            return {"operators": [operator_json(*defined) for defined in self._operators.values()]}

    def _action_admit(self, request: dict[str, Any]) -> dict[str, Any]:
        self._admit(request)
        return {}


def operator_json(operator: Operator, routing: Routing | None = None) -> dict[str, Any]:
    """An operator as hosts take it, with the table from which one starts that has never heard of it."""
    initial = {host: base64.b64encode(rows).decode() for host, rows in operator.initial.items()}
    adapter = base64.b64encode(operator.adapter).decode()
    return {
        "spec": operator.spec.to_dict(),
        "adapter": adapter,
        "initial": initial,
        "routing": None if routing is None else routing.to_dict(),
    }

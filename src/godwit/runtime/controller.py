"""The controller, in the driver: hosts register here, get operator definitions, and ask whether a run is the newest.

All its state can be read again from the checkpoint or from Spark, and rows are processed while the controller is away. It must
not know Spark: the driver answers the questions about runs, scopes and slots (`DriverAnswers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from godwit import ports
from godwit.errors import GodwitError
from godwit.model.routing import Routing
from godwit.runtime.messages import (
    ActiveScopes,
    Admit,
    BackupPeer,
    CheckTakenOver,
    CheckWatermark,
    GetActiveScopes,
    GetBackupPeer,
    GetDefinitions,
    GetWatermark,
    OfferSlot,
    OperatorDefinition,
    OperatorDefinitions,
    Register,
    ReportFailure,
    ReportTaskError,
    RunAdmitted,
    SlotTaken,
    SparkWatermark,
    TakenOver,
    WatermarkMoved,
)
from godwit.runtime.processor.spec import Operator
from godwit.transport import line, typed
from godwit.transport.typed import Done


@dataclass(frozen=True, slots=True)
class Registered:
    """A host as it last announced itself."""

    host: str
    generation: int
    address: str
    pid: int
    load_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class DriverAnswers:
    """How the driver answers what hosts and waiting tasks ask.

    `admit`: raises if a run may not work, and says how Spark tracks its progress. `active_scopes`: evaluations of batch
    DataFrames that have not ended. `taken_over`: whether other hosts have taken over the keys of this host. `backup_peer`: the
    host that keeps the backup of this host. `registered`: called with a host that serves, and its generation. `restored`:
    called with a host that came back from its backup. `slot_taken`: whether the task of this attempt must end, because a host
    needs its slot. `task_failed`: called with the error that has ended a task. `watermark`: Spark's, of the batch that runs.
    `watermark_moved`: whether Spark's next batch of this operator would have a later watermark.
    """

    admit: Callable[[Admit], RunAdmitted]
    active_scopes: Callable[[], Sequence[str]]
    taken_over: Callable[[str], bool] = lambda _: False
    backup_peer: Callable[[str], str | None] = lambda _: None
    registered: Callable[[str, int], None] = lambda *_: None
    restored: Callable[[str], None] = lambda _: None
    slot_taken: Callable[[int], bool] = lambda _: False
    task_failed: Callable[[GodwitError], None] = lambda _: None
    watermark: Callable[[GetWatermark], SparkWatermark] = lambda _: SparkWatermark(0, 0)
    watermark_moved: Callable[[str], bool] = lambda _: False


class Controller:
    def __init__(self, bind: str, token: str, answers: DriverAnswers, address: str | None = None) -> None:
        """`address`: under which hosts reach the driver, if not the one it listens on."""
        self._operators: dict[str, OperatorDefinition] = {}
        self._hosts: dict[str, Registered] = {}
        self._failures: dict[str, GodwitError] = {}
        self._task_error: GodwitError | None = None
        self._changed = ports.condition()
        self._answers = answers
        actions = typed.actions(
            {
                Register: self._register,
                ReportFailure: self._failed,
                ReportTaskError: self._task_failed,
                GetDefinitions: self._definitions,
                Admit: self._admit,
                GetWatermark: answers.watermark,
                CheckWatermark: lambda request: WatermarkMoved(answers.watermark_moved(request.operator)),
                CheckTakenOver: lambda request: TakenOver(answers.taken_over(request.host)),
                GetActiveScopes: lambda _: ActiveScopes(tuple(answers.active_scopes())),
                OfferSlot: lambda request: SlotTaken(answers.slot_taken(request.attempt)),
                GetBackupPeer: lambda request: BackupPeer(answers.backup_peer(request.host)),
            }
        )
        self._service = line.listen(bind, token, actions)
        self.address = f"{address or bind}:{self._service.port}"

    # -- what the driver does ----------------------------------------------------------------------------------------

    def add(self, operator: Operator, routing: Routing | None = None) -> None:
        """`routing`: the first owners, for hosts that have no record of the operator."""
        with self._changed:
            self._operators[operator.spec.name] = OperatorDefinition.of(operator, routing)

    def remove(self, name: str) -> None:
        with self._changed:
            self._operators.pop(name, None)

    def hosts(self) -> dict[str, Registered]:
        with self._changed:
            return dict(self._hosts)

    def failure(self, host: str) -> GodwitError | None:
        with self._changed:
            return self._failures.get(host)

    def last_task_error(self) -> GodwitError | None:
        with self._changed:
            return self._task_error

    def wait_hosts(self, names: list[str], timeout_s: float) -> list[str]:
        """Wait until all hosts are registered; return the names of the missing ones. The error of a failed host is raised."""
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
        """Until a later generation of the host has registered, or the timeout has passed."""
        with self._changed:
            self._changed.wait_for(lambda: self._generation(host) > generation, timeout_s)

    def _generation(self, host: str) -> int:
        return self._hosts[host].generation if host in self._hosts else 0

    def forget(self, host: str) -> None:
        """The host was stopped on purpose; its address is not used any more."""
        with self._changed:
            self._hosts.pop(host, None)
            self._failures.pop(host, None)

    def gave_up(self, host: str, error: GodwitError) -> None:
        """The host is not started again. An error that the host itself has reported is kept instead."""
        with self._changed:
            self._failures.setdefault(host, error)
            self._changed.notify_all()

    def close(self) -> None:
        self._service.stop(2.0)

    # -- what hosts ask ----------------------------------------------------------------------------------------------

    def _register(self, request: Register) -> Done:
        host = request.host
        registered = Registered(host, request.generation, request.address, request.pid, request.load_s, ports.now_s())
        with self._changed:
            self._hosts[host] = registered
            self._failures.pop(host, None)
            self._changed.notify_all()
        self._answers.registered(host, request.generation)
        if request.restored:
            self._answers.restored(host)
        return Done()

    def _failed(self, request: ReportFailure) -> Done:
        with self._changed:
            # A report of an older generation is ignored: its successor serves.
            if not 0 < request.generation < self._generation(request.host):
                self._failures[request.host] = request.error
                self._changed.notify_all()
        return Done()

    def _task_failed(self, request: ReportTaskError) -> Done:
        with self._changed:
            self._task_error = request.error
        self._answers.task_failed(request.error)
        return Done()

    def _definitions(self, _: GetDefinitions) -> OperatorDefinitions:
        with self._changed:
            return OperatorDefinitions(tuple(self._operators.values()))

    def _admit(self, request: Admit) -> RunAdmitted:
        return self._answers.admit(request)

"""A Flink cluster of one JobManager and one TaskManager, for one run: its settings, its processes, its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.peers import prepare
from benchmarks.peers.failed import PeerFailed
from benchmarks.peers.flink_rest import Rest
from benchmarks.peers.peer_settings import PeerSettings
from benchmarks.peers.run import wait_for

START_S_MAX: Final = 90.0
STOP_S_MAX: Final = 10.0
LOG_TAIL_BYTES: Final = 3_000


def conf(settings: PeerSettings, directory: Path, rest_port: int, rpc_port: int) -> dict[str, str]:
    """Flink's recommended settings for this job; all else is as Flink has it.

    Free slots for the greater parallelism are there before it is asked for: starting machines is not what is measured.
    """
    chosen = {
        "rest.port": str(rest_port),
        "jobmanager.rpc.port": str(rpc_port),
        "taskmanager.numberOfTaskSlots": str(max(settings.parallelism, settings.parallelism_after)),
        "taskmanager.memory.process.size": "4g",
        "state.backend.type": settings.backend,
        "execution.checkpointing.interval": f"{round(settings.checkpoint_s * 1000)}ms",
        "execution.checkpointing.dir": f"file://{directory}/checkpoints",
        # Rows wait for a full network buffer at most so long; the default of 100 ms would be most of the latency.
        "execution.buffer-timeout.interval": "5ms",
        "io.tmp.dirs": f"{directory}/tmp",
        "web.upload.dir": f"{directory}/upload",
        # What REST tells of a job is up to 3 s old by default: the end of a change would be seen late.
        "web.refresh-interval": "10ms",
        # A job that fails is to say so, not to be tried again; a change of parallelism is no failure.
        "restart-strategy.type": "disable",
    }
    if settings.backend == "rocksdb":
        chosen["execution.checkpointing.incremental"] = "true"
    else:
        chosen["taskmanager.memory.managed.fraction"] = "0.0"  # for RocksDB alone: the heap gets it
    if settings.way == "adaptive":
        chosen["jobmanager.scheduler"] = "adaptive"
        # It spaces changes, and the start of the job is one: with the default of 30 s a change would wait for nothing else.
        chosen["jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling"] = "1s"
    return chosen


class Cluster:
    def __init__(self, settings: PeerSettings, directory: Path) -> None:
        rest_port, rpc_port = _free_ports(2)
        self._conf = conf(settings, directory, rest_port, rpc_port)
        self._slots = int(self._conf["taskmanager.numberOfTaskSlots"])
        self._log = directory / "log"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.rest = Rest(rest_port)

    def __enter__(self) -> Self:
        self._log.mkdir()
        try:
            for role in ("jobmanager", "taskmanager"):
                self._launch(role)
            wait_for(self._up, START_S_MAX, "Flink offers its slots")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def check(self) -> None:
        """Raises when a process has ended by itself."""
        for process in self._processes:
            if process.poll() is not None:
                raise PeerFailed(f"a process of Flink ended with {process.returncode}: {self.tail()}")

    def tail(self) -> str:
        """The last that the processes said."""
        return "\n".join(
            path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") for path in self._log.glob("*.out")
        )

    def _up(self) -> bool:
        self.check()
        return self.rest.slots() >= self._slots

    def _launch(self, role: str) -> None:
        home = prepare.flink_home()
        words = [word for name, value in self._conf.items() for word in ("-D", f"{name}={value}")]
        places = {"FLINK_HOME": str(home), "FLINK_LOG_DIR": str(self._log), "FLINK_PID_DIR": str(self._log)}
        with (self._log / f"{role}.out").open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    ["bash", str(home / f"bin/{role}.sh"), "start-foreground", *words],
                    env={**os.environ, **places, "JAVA_HOME": str(prepare.java_home())},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _stop(self) -> None:
        for process in self._processes:
            _signal(process, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the process and all it started: its session is its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _free_ports(count: int) -> list[int]:
    """Held all at once, or the same one could be given twice."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()

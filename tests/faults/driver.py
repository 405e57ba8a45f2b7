"""A whole application in a process of its own, to be killed: key-count into files by batch id.

Run as `python -m tests.faults.driver <config.json>`; the configuration is `App`. It can kill or fail itself at named points,
each once, and says how far it is in files, so that whoever watches it needs no clock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

import godwit
from godwit.runtime.takeover import rescue
from godwit.spark.change.migration_handle import Migration
from tests.spark.flocks import (
    OPERATOR,
    Count,
    Files,
    HeavyCount,
    KeyCount,
    drain,
    kill_host,
    pid_of,
    start,
    state_of,
    under_way,
    wait_until,
)

ROOT = Path(__file__).parents[2]


@dataclass
class App:
    """What to run, where, and which faults to meet. `die` is point -> batch, for the driver itself."""

    folder: str
    name: str = "app"
    rows: int = 1200
    keys: int = 40
    per_batch: int = 300
    lanes: int = 2
    hosts: int = 2
    master: str = "local[6]"
    conf: dict[str, str] = field(default_factory=dict)
    die: dict[str, int] = field(default_factory=dict)
    kill: dict[str, int] = field(default_factory=dict)  # host -> batch in which it is killed
    kill_executor: dict[str, int] = field(
        default_factory=dict
    )  # the same, with the executor and all tasks that it runs
    fail_tasks: bool = False
    change: dict[str, Any] = field(default_factory=dict)  # what to ask of the flock in batch 2; rows go on meanwhile
    ballast_bytes: int = 0  # of state beside each key's count
    stay: bool = False  # do not close the flock at the end, wait to be ended
    memory_max_bytes: int | None = None
    recovery: Any = "storage"
    take_over: bool = False

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def counted(self) -> KeyCount:
        return KeyCount(self.rows, self.keys, self.per_batch, self.lanes)

    @property
    def sink(self) -> Files:
        return Files(self.path / "out")

    def begin(self) -> subprocess.Popen[bytes]:
        """Start it. What it logs is in <name>.log."""
        self.path.mkdir(parents=True, exist_ok=True)
        config = self.path / f"{self.name}.json"
        config.write_text(json.dumps(asdict(self)))
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "GODWIT_TEST_FOLDER": self.folder,
        }
        if (self.path / "temp").exists():
            env["TMPDIR"] = str(self.path / "temp")
        with (self.path / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.driver", str(config)], stdout=log, stderr=log, env=env
            )

    def run(self, timeout_s: float = 400.0) -> int:
        """Start it and wait for its end, whatever that is."""
        process = self.begin()
        try:
            return process.wait(timeout_s)
        finally:
            process.kill()
            process.wait()

    def log(self) -> str:
        return (self.path / f"{self.name}.log").read_text()

    def says(self, what: str) -> Any:
        """What the application wrote down under a name, None if it has not."""
        path = self.path / f"{self.name}.{what}"
        return json.loads(path.read_text()) if path.exists() else None

    def say(self, what: str, value: Any) -> None:
        partial = self.path / f"{self.name}.{what}.partial"
        partial.write_text(json.dumps(value))
        partial.replace(self.path / f"{self.name}.{what}")


def once(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def strike(app: App, point: str, batch: int) -> None:
    if app.die.get(point) == batch and once(app.path / f"died-{point}"):
        os.kill(os.getpid(), signal.SIGKILL)


def ask(app: App, flock: godwit.Flock) -> Migration:
    """What `change` says, begun and not waited for. What is to take over has its copies made first."""
    asked = dict(app.change)
    call = getattr(flock, asked.pop("call"))
    if asked["protocol"] == "standby":
        flock.standby(**{name: value for name, value in asked.items() if name != "protocol"})
    migration: Migration = call(**asked, wait=False)
    return migration


def strike_between_steps(app: App, migration: Migration) -> threading.Thread:
    """Beside the batch, whose rows go on while keys move."""

    def watch() -> None:
        wait_until(lambda: under_way(migration), what="some of it is there")
        if "between steps" in app.die and once(app.path / "died-between-steps"):
            os.kill(os.getpid(), signal.SIGKILL)

    wait_until(lambda: migration.progress()["moves"], what="it has begun")
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def kill_executor(flock: godwit.Flock, host: str) -> None:
    """The JVM in which the host's task runs; without it the worker processes end, too."""
    pid: int = wait_until(lambda: pid_of(flock, host), what=f"{host} serves")
    executor = next(parent for parent in psutil.Process(pid).parents() if "java" in parent.name())
    assert "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline()), "not the driver"
    executor.kill()


def kill_due(app: App, flock: godwit.Flock, batch: int) -> None:
    for kill, due in ((kill_host, app.kill), (kill_executor, app.kill_executor)):
        for host, at in due.items():
            if at == batch and once(app.path / f"{kill.__name__}-{host}"):
                kill(flock, host)


def arm_will(app: App) -> None:
    """Around the moment at which the keys of a lost host get new owners."""
    plain = rescue.write_will

    def armed(*args: Any) -> None:
        strike(app, "before the will", 0)
        plain(*args)
        strike(app, "after the will", 0)

    rescue.write_will = armed


class KillsDriver(Count):
    """Kills the driver from inside a host, with rows of a chunk worked on and not yet merged."""

    def __init__(self, folder: Path, driver: int, at_row: int) -> None:
        self.folder = folder
        self.driver = driver
        self.at_row = at_row

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        outputs = super().process(rows, state, times)
        if (rows.batch.column("n").to_numpy() >= self.at_row).any() and once(self.folder / "died-working"):
            os.kill(self.driver, signal.SIGKILL)
        return outputs


def failing_once(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Downstream of the operator: every task of every batch throws in its first attempt, half-way."""

    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch.slice(0, len(batch) // 2)
            if context.attemptNumber() == 0:
                (folder / f"failed-{context.stageId()}-{context.partitionId()}").touch()
                raise RuntimeError("first attempts fail here")
            yield batch.slice(len(batch) // 2)

    return body


def session(app: App) -> SparkSession:
    builder = SparkSession.builder.master(app.master).appName(app.name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(app.path / "warehouse"),
        **app.conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(app: App) -> None:
    app.say("pid", os.getpid())
    spark = session(app)
    sink = app.sink
    watching: list[threading.Thread] = []

    def write(frame: DataFrame, batch: int) -> None:
        strike(app, "planned", batch)
        kill_due(app, flock, batch)
        if app.change and batch == 2 and once(app.path / "asked"):
            watching.append(strike_between_steps(app, ask(app, flock)))
        rows = frame.collect()
        strike(app, "evaluated", batch)
        sink.write(batch, rows)
        app.say("batch", batch)
        strike(app, "written", batch)

    arm_will(app)
    flock = godwit.Flock(
        spark,
        hosts=app.hosts,
        checkpoint=app.path / "godwit",
        memory_max_bytes=app.memory_max_bytes,
        recovery=app.recovery,
        take_over=app.take_over,
    )
    app.say("hosts", {host: found["address"] for host, found in flock.status()["hosts"].items()})
    processor = HeavyCount(app.ballast_bytes) if app.ballast_bytes else Count()
    if "working" in app.die:
        processor = KillsDriver(app.path, os.getpid(), app.die["working"])
    processor_name = type(processor)
    processor_name.__qualname__ = "Count"  # the same definition with and without the fault
    counts = flock.process(app.counted.stream(spark), "key", processor, name=OPERATOR)
    if app.fail_tasks:
        counts = counts.mapInArrow(failing_once(app.path), counts.schema)
    query = start(counts, write, app.path / "spark")
    try:
        drain(query)
        for thread in watching:
            thread.join()  # the input may be over before the move is
        app.say("state", sorted(state_of(flock).items()))
        app.say("history", flock.history())
        app.say("owners", [[row["host"], row["group_count"]] for row in flock.routing(OPERATOR)])
        app.say("status", flock.status().to_dict())
        if app.stay:
            signal.pause()
    except BaseException as error:
        app.say("error", f"{type(error).__name__}: {error}")
        raise
    finally:
        flock.close()
        spark.stop()


if __name__ == "__main__":
    main(App(**json.loads(Path(sys.argv[1]).read_text())))

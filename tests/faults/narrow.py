"""An application with fewer task slots than partitions, whose hosts are hit in the middle of a batch.

Run as `python -m tests.faults.narrow <config.json>`; the configuration is `Narrow`. The hosts hit themselves while they apply
the first rows of the second batch, when most of its partitions still wait for a slot: the slot of a lost host goes to a router.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import pyspark
import pyspark.cloudpickle
from pyspark.sql import DataFrame, SparkSession

import godwit
from godwit.runtime.liveness.leases import read_lease
from tests.spark.flocks import OPERATOR, Count, Files, KeyCount, drain, start, state_of

ROOT = Path(__file__).parents[2]
PER_BATCH = 600


@dataclass
class Narrow:
    """What to run. `victims`: hosts that are hit, each once. `how`: the name of the signal."""

    folder: str
    master: str = "local[4]"
    hosts: int = 2
    lanes: int = 12
    victims: tuple[str, ...] = ("host-1",)
    how: str = "SIGKILL"
    recovery: Any = "storage"
    batch_query: bool = False
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def counted(self) -> KeyCount:
        return KeyCount(3 * PER_BATCH, keys=60, per_batch=PER_BATCH, lanes=self.lanes)

    @property
    def sink(self) -> Files:
        return Files(self.path / "out")

    def run(self, timeout_s: float = 300.0) -> int:
        config = self.path / "narrow.json"
        config.write_text(json.dumps(asdict(self)))
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        }
        with (self.path / "log").open("wb") as log:
            command = [sys.executable, "-m", "tests.faults.narrow", str(config)]
            return subprocess.run(command, stdout=log, stderr=log, env=env, timeout=timeout_s, check=False).returncode

    def log(self) -> str:
        return (self.path / "log").read_text()[-6000:]

    def outcome(self) -> Any:
        return json.loads((self.path / "outcome.json").read_text())


class Struck(Count):
    """Counts, and hits its own host once, with rows of a chunk worked on and not yet merged."""

    def __init__(self, app: Narrow) -> None:
        self.checkpoint = app.path / "godwit"
        self.marks = app.path / "marks"
        self.victims = app.victims
        self.signal = getattr(signal, app.how)

    def process(self, rows: godwit.Rows, state: Any, times: godwit.Times) -> godwit.Outputs:
        outputs = super().process(rows, state, times)
        if (rows.batch.column("n").to_numpy() >= PER_BATCH).any():
            self._strike()
        return outputs

    def _strike(self) -> None:
        for host in self.victims:
            mark, lease = self.marks / host, read_lease(self.checkpoint / "hosts" / host)
            if lease is not None and lease.pid == os.getpid() and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), self.signal)


for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])


def session(app: Narrow) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(app.path / "warehouse"),
        **app.conf,
    }
    builder = SparkSession.builder.master(app.master).appName("narrow")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(app: Narrow) -> None:
    (app.path / "marks").mkdir()
    spark = session(app)
    flock = godwit.Flock(spark, hosts=app.hosts, checkpoint=app.path / "godwit", recovery=app.recovery)
    outcome: dict[str, Any] = {}
    try:
        (counted_as_batch if app.batch_query else counted)(app, spark, flock)
    except BaseException as error:
        outcome["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        struck = [mark.stat().st_mtime for mark in (app.path / "marks").iterdir()]
        outcome |= {"waited_s": time.time() - max(struck, default=0.0), "struck": len(struck)}
        outcome |= {"history": flock.history()}
        if not app.batch_query and "error" not in outcome:
            outcome["waited_s"] = (app.path / "out" / "1.json").stat().st_mtime - max(struck)
            outcome["state"] = sorted(state_of(flock).items())
        (app.path / "outcome.json").write_text(json.dumps(outcome))
        flock.close()
        spark.stop()


def counted(app: Narrow, spark: SparkSession, flock: godwit.Flock) -> None:
    def write(frame: DataFrame, batch: int) -> None:
        app.sink.write(batch, frame.collect())

    drain(start(flock.process(app.counted.stream(spark), "key", Struck(app), name=OPERATOR), write, app.path / "spark"))


def counted_as_batch(app: Narrow, spark: SparkSession, flock: godwit.Flock) -> None:
    frame = flock.process(app.counted.batch(spark), "key", Struck(app), name=OPERATOR)
    app.sink.write(0, frame.collect())


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    main(Narrow(**given | {"victims": tuple(given["victims"])}))

"""A Kafka broker for tests, demos and benchmarks: one process on this machine, without Docker and without an installation.

Decides how the broker is set up (one node, no replication, nothing outlives its directory) and what it takes to start, kill and
restart it. The jars come from Maven's repository by Spark's own resolver. Topics are managed with `confluent_kafka`, which the
extra `godwit[kafka]` installs.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import uuid
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from godwit import ports
from godwit.errors import DefinitionError, HostUnavailable
from godwit.testing.jars import SPARK_HOME, fetched

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

BROKER: Final = "org.apache.kafka:kafka_2.13:3.9.1"
START_S: Final = 60.0
STOP_S: Final = 10.0
POLL_S: Final = 0.05
# Spark's connector. Newer ones than 4.2.0 are not everywhere yet, and this one works with every PySpark that Godwit supports.
_OF_SPARK: Final = (  # PySpark brings these itself
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.lz4:lz4-java",
    "at.yawk.lz4:lz4-java",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
    "com.google.code.findbugs:jsr305",
    "org.scala-lang.modules:scala-parallel-collections_2.13",
)
_TOKEN_PROVIDER: Final = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
_CONNECTOR: Final = (
    ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0", (_TOKEN_PROVIDER, *_OF_SPARK)),
    (f"{_TOKEN_PROVIDER}:4.0.0", ("org.apache.kafka:kafka-clients", *_OF_SPARK)),
)
_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    # A broker that was killed may register again when its former self counts as gone.
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "250",
}


def connector_jars() -> list[Path]:
    """Spark's Kafka source and sink: jars for `spark.jars`, or for `ADD JAR` in a session that runs."""
    return [jar for package, excluded in _CONNECTOR for jar in fetched([package], excluded)]


class KafkaBroker:
    """A broker in a directory. Killed and started again it goes on with what it had, at the same address.

    memory: of its JVM.
    """

    def __init__(self, directory: str | os.PathLike[str], memory: str = "512m") -> None:
        self._directory = Path(directory)
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        ports_ = _free_ports(2)
        self.bootstrap = f"127.0.0.1:{ports_[0]}"
        self._controller = f"127.0.0.1:{ports_[1]}"
        self._admin: AdminClient | None = None

    # -- process -----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the broker, and wait until it answers."""
        if not (self._directory / "server.properties").exists():
            self._set_up()
        with (self._directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(self._java("kafka.Kafka"), stdout=log, stderr=log)
        deadline_s = ports.now_s() + START_S
        while not self._answers():
            if self._process.poll() is not None or ports.now_s() > deadline_s:
                raise self._failed("the broker did not start")
            ports.sleep(POLL_S)
        return self

    def _set_up(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self._controller}"
        settings = _SETTINGS | {
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": f"1@{self._controller}",
            "log.dirs": str(self._directory / "logs"),
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        draft = self._directory / "draft.properties"
        draft.write_text(text)
        cluster = uuid.uuid4().hex[:22]
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(draft), settings=False)
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            (self._directory / "broker.log").write_bytes(done.stdout + done.stderr)
            raise self._failed("the broker's directory could not be prepared")
        draft.rename(self._directory / "server.properties")

    def _java(self, program: str, *arguments: str, settings: bool = True) -> list[str]:
        scala = [str(jar) for jar in (SPARK_HOME / "jars").glob("scala-library-*.jar")]
        classpath = os.pathsep.join([*map(str, fetched([BROKER])), *scala])
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
        if java is None:
            raise DefinitionError("no Java found, in JAVA_HOME or on PATH", todo="Install one, or set JAVA_HOME")
        command = [java, f"-Xmx{self._memory}", "-XX:+UseSerialGC", "-cp", classpath, program, *arguments]
        return [*command, str(self._directory / "server.properties")] if settings else command

    def _answers(self) -> bool:
        host, _, port = self.bootstrap.partition(":")
        try:
            socket.create_connection((host, int(port)), 1.0).close()
            self.admin().list_topics(timeout=1.0)
        except Exception:  # noqa: BLE001 whatever it is, the broker does not answer yet
            return False
        return True

    def _failed(self, what: str) -> HostUnavailable:
        log = self._directory / "broker.log"
        last = log.read_bytes()[-1_000:].decode(errors="replace") if log.exists() else ""
        return HostUnavailable(f"{what}; its last words are:\n{last}", todo=f"Look at {log}")

    def kill(self) -> None:
        """SIGKILL: whatever the operating system has of the log stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- topics ------------------------------------------------------------------------------------------------------

    def admin(self) -> AdminClient:
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def create(self, topic: str, partitions: int = 2, **settings: str) -> None:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        made = NewTopic(topic, partitions, 1, config=settings)
        _wait(self.admin().create_topics([made]))

    def delete(self, topic: str) -> None:
        _wait(self.admin().delete_topics([topic]))

    def add_partitions(self, topic: str, partitions: int) -> None:
        """`partitions`: how many the topic has afterwards."""
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

        _wait(self.admin().create_partitions([NewPartitions(topic, partitions)]))


def _wait(futures: dict[str, Any]) -> None:
    for future in futures.values():
        future.result(timeout=START_S)


def _free_ports(count: int) -> list[int]:
    """Ports that are free now. All are taken at once, so that they differ."""
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]
    finally:
        for each in taken:
            with closing(each):
                pass

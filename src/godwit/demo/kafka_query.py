"""The query of `make demo-kafka`: reports from a topic, the average speed of every car into another topic, in real time.

Decides how reports get in (a process of its own sends each when it is due), how a result says which report it belongs to (the
partition and offset of the report), and how results are read again: by a consumer that notes when each one came. So the latency
of a report is what a reader of the second topic sees.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from godwit.testing import open_loop
from godwit.testing.kafka import KafkaBroker
from godwit.testing.kafka_load import SEPARATOR
from godwit.workload import Workload

REPORTS: Final = "reports"
SPEEDS: Final = "speeds"
LANES: Final = 2
LEAD_S: Final = 1.0  # until the first report is due: the process that sends reports has to start
READ_AT_ONCE: Final = 2_000
WAIT_S: Final = 0.1
CONSUMER: Final = {"group.id": "demo", "enable.auto.commit": False, "fetch.wait.max.ms": 20, "fetch.min.bytes": 1}
OUTPUT: Final = "car string, mean double, n long, due timestamp, partition int, offset long"
COLUMNS: Final[dict[str, pa.DataType]] = {  # of the results that the reader has; times in microseconds and milliseconds
    "car": pa.string(),
    "mean": pa.float64(),
    "n": pa.int64(),
    "due": pa.int64(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "left": pa.int64(),
}


class AverageOfReports(StatefulProcessor):
    """The average speed of a car after each of its reports, with where in Kafka the report was."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._average = handle.getValueState("average", "mean double, n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        mean, n = self._average.get() or (0.0, 0)
        for row in rows:
            mean, n = (mean * n + row.speed) / (n + 1), n + 1
            yield Row(car=key[0], mean=mean, n=n, due=row.due, partition=row.partition, offset=row.offset)
        self._average.update((mean, n))

    def close(self) -> None:
        pass


def reports(spark: SparkSession, broker: KafkaBroker, streaming: bool = True) -> DataFrame:
    """The columns of a report, and where in Kafka it is. All reports so far, unless streaming."""
    reader: Any = (spark.readStream if streaming else spark.read).format("kafka")
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", REPORTS)
    texts = sf.split(sf.col("value").cast("string"), SEPARATOR)
    columns = [
        texts[0].alias("car"),
        texts[1].cast("double").alias("speed"),
        sf.timestamp_micros(texts[3].cast("long")).alias("due"),
    ]
    frame: DataFrame = reader.option("startingOffsets", "earliest").load()
    return frame.select(*columns, "topic", "partition", "offset")


def records(speeds: DataFrame) -> DataFrame:
    """Results as records of Kafka: the car is the key, so a reader gets the results of a car in their order."""
    result = sf.struct("car", "mean", "n", sf.unix_micros("due").alias("due"), "partition", "offset")
    return speeds.select(sf.col("car").alias("key"), sf.to_json(result).alias("value"))


class Load:
    """A process that sends each report when it is due."""

    def __init__(self, broker: KafkaBroker, workload: Workload) -> None:
        self.start_s = time.time() + LEAD_S
        options = json.dumps({**workload.identity(), "rows": str(workload.end)})
        arguments = [broker.bootstrap, REPORTS, str(int(self.start_s * 1_000)), options, "0"]
        self._process = subprocess.Popen([sys.executable, "-m", "godwit.testing.kafka_load", *arguments])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Reader:
    """A thread that reads results as they come. It keeps repeats: whoever counts results has to see them."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.came: list[tuple[dict[str, Any], float]] = []
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._consumer = Consumer(CONSUMER | {"bootstrap.servers": broker.bootstrap})
        self._consumer.assign([TopicPartition(SPEEDS, lane, 0) for lane in range(LANES)])
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._stopping.is_set():
            first = self._consumer.poll(WAIT_S)
            if first is None:
                continue
            at_s = time.time()
            found = [first, *self._consumer.consume(READ_AT_ONCE, 0)]  # those that are there: consume() waits for more
            came = [(json.loads(record.value() or b"{}"), at_s) for record in found if record.error() is None]
            with self._changed:
                self.came += came
                self._changed.notify_all()

    @property
    def count(self) -> int:
        return len(self.came)

    def wait(self, rows: int, timeout_s: float) -> bool:
        """Whether so many results have come."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.came) >= rows, timeout_s)

    def rows(self) -> pa.Table:
        """All results in the order in which they came; `left` is when, in milliseconds."""
        came = self.came[:]
        return pa.Table.from_pylist(
            [result | {"left": round(at_s * 1_000)} for result, at_s in came], pa.schema(COLUMNS)
        )

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()


class KafkaRunning(open_loop.Running):
    """The query with the real-time trigger, its load and its reader."""

    def __init__(self, speeds: DataFrame, broker: KafkaBroker, checkpoint: str, batch_s: float) -> None:
        self.arrivals: Any = Reader(broker)
        self.batch_s = batch_s
        self.reports = 0  # sent so far, or soon
        self._loads: list[Load] = []
        self._broker = broker
        self._frame = speeds
        self._checkpoint = checkpoint
        self.query = self.start()

    def send(self, workload: Workload) -> None:
        """Start a process that sends these reports."""
        self._loads.append(Load(self._broker, workload))
        self.reports += workload.end

    def start(self) -> StreamingQuery:
        writer = records(self._frame).writeStream.format("kafka").option("topic", SPEEDS)
        writer = writer.option("kafka.bootstrap.servers", self._broker.bootstrap).option("kafka.linger.ms", "0")
        writer = writer.option("checkpointLocation", self._checkpoint).outputMode("update")
        trigger: dict[str, Any] = {"realTime": f"{round(self.batch_s * 1_000)} milliseconds"}
        return writer.trigger(**trigger).start()

    def wait_committed(self, look: Callable[[int], None]) -> None:
        """Until Spark has committed a batch that ends with the last report."""
        while self.reports_committed() < self.reports:
            self._look(look)
            self.arrivals.wait(1 << 62, open_loop.LOOK_EVERY_S)

    def reports_committed(self) -> int:
        return max((_reports_until(each) for each in self.query.recentProgress), default=0)

    def batch_ends_s(self) -> list[float]:
        """When each batch that is committed has ended."""
        batches = [json.loads(each.json) for each in self.query.recentProgress]
        return [_instant(each["timestamp"]) + each["batchDuration"] / 1_000 for each in batches]

    def close(self) -> None:
        self.query.stop()
        self.arrivals.close()
        for load in self._loads:
            load.close()


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _reports_until(progress: Any) -> int:
    """How many reports had been read when a batch ended."""
    end = json.loads(progress.json)["sources"][0]["endOffset"]
    offsets = json.loads(end) if isinstance(end, str) else end or {}
    return sum(offsets.get(REPORTS, {}).values())

"""A topic in, a flock, a topic out, on a broker of the project's own: what the tests of Kafka share.

Every key must put out 1, 2, 3 ... n with the offset of the row, so that lost, repeated and misplaced rows show in the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import godwit
from godwit.testing.kafka import KafkaBroker
from tests.spark.flocks import Count, wait_until

KEYS = 40
OPERATOR = "count"
PRODUCER = {"linger.ms": 2, "acks": "all", "enable.idempotence": True, "log_level": 0}


class Counted(Count):
    """Row k of a key gives k, and where in Kafka the row was."""

    output_schema = pa.schema(
        [("key", pa.int64()), ("count", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64())]
    )


@dataclass
class KafkaStage:
    spark: SparkSession
    broker: KafkaBroker
    root: Path
    name: str
    partitions: int = 2
    sent: Counter[int] = field(default_factory=Counter)
    options: dict[str, str] = field(default_factory=dict)  # of the writers of later queries

    def __post_init__(self) -> None:
        self.source, self.target = f"{self.name}-in", f"{self.name}-out"
        self.broker.create(self.source, self.partitions)
        self.broker.create(self.target, self.partitions)
        self._next = 0

    # -- in ----------------------------------------------------------------------------------------------------------

    def send(self, rows: int, scattered: bool = False, at_ms: int = 0) -> None:
        """So many further rows; a key always goes to the same partition. `scattered`: to one partition after another.

        `at_ms`: their timestamp; 0: now.
        """
        from confluent_kafka import Producer

        producer = Producer(PRODUCER | {"bootstrap.servers": self.broker.bootstrap})
        for number in range(self._next, self._next + rows):
            key = number * 7 % KEYS
            text = str(key).encode()
            partition = (number // KEYS if scattered else key) % self.partitions
            value = str(number).encode()
            producer.produce(self.source, key=text, value=value, partition=partition, timestamp=at_ms)
            self.sent[key] += 1
        self._next += rows
        producer.flush()

    def rows(self, *columns: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        reader = reader.option("subscribe", self.source).option("startingOffsets", "earliest").options(**options)
        return reader.load().selectExpr(
            "cast(cast(key AS string) AS bigint) AS key", *(columns or ("topic", "partition", "offset"))
        )

    # -- out ---------------------------------------------------------------------------------------------------------

    def query(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        """Into the topic, one record per row."""
        records = frame.selectExpr("cast(key AS string) AS key", "to_json(struct(*)) AS value")
        writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        writer = writer.option("topic", self.target).option("checkpointLocation", str(self.root / "spark"))
        writer = writer.options(**self.options)
        return writer.outputMode("update").trigger(**trigger or {"processingTime": "0 seconds"}).start()

    def received(self) -> list[dict[str, int]]:
        """All records of the topic, partition by partition, in order."""
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        records = (
            reader.option("subscribe", self.target)
            .load()
            .selectExpr(
                "partition",
                "offset",
                "from_json(cast(value AS string), 'key bigint, count bigint, partition int, offset bigint') AS out",
            )
        )
        rows = records.orderBy("partition", "offset").collect()
        return [row["out"].asDict() for row in rows]

    def wait(self, query: StreamingQuery, rows: int) -> None:
        """Until so many different rows have left."""

        def enough() -> bool:
            error = query.exception()
            if error is not None:
                raise AssertionError(str(error)[:2_000])
            return len({(row["partition"], row["offset"]) for row in self.received()}) >= rows

        wait_until(enough, 120)

    def check(self) -> int:
        """All rows once, in order, for a reader who skips repeats. Returns how many repeats there were."""
        counts: dict[int, int] = {}
        seen: dict[tuple[int, int], dict[str, int]] = {}
        repeats = 0
        for row in self.received():
            where = row["partition"], row["offset"]
            if where in seen:
                assert seen[where] == row, "a repeat says what was said before"
                repeats += 1
                continue
            seen[where] = row
            assert row["count"] == counts.get(row["key"], 0) + 1, f"{row} after {counts.get(row['key'], 0)}"
            counts[row["key"]] = row["count"]
        assert counts == dict(self.sent)
        return repeats


def with_connector(spark: SparkSession) -> None:
    from godwit.testing.kafka import connector_jars

    for jar in connector_jars():
        spark.sql(f"ADD JAR '{jar}'")


def brokers(root: Path) -> Iterator[KafkaBroker]:
    with KafkaBroker(root) as broker:
        yield broker


def flock(spark: SparkSession, root: Path, hosts: int = 2) -> godwit.Flock:
    return godwit.Flock(spark, hosts=hosts, checkpoint=root / "flock")

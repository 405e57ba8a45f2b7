"""The examples and the guide to Kafka say what is so: they run against a real broker."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from godwit.spark.define.operator_definition import Definition
from godwit.spark.define.operator_frame import numbering
from godwit.spark.define.row_identity import RowIdentity, row_identity
from godwit.testing.kafka import KafkaBroker
from tests.spark.kafka_stage import KafkaStage, brokers, flock, with_connector
from tests.test_docs import snippets

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    yield from brokers(tmp_path_factory.mktemp("kafka"))


@pytest.fixture
def stage(spark: SparkSession, broker: KafkaBroker, tmp_path: Path, request: pytest.FixtureRequest) -> KafkaStage:
    with_connector(spark)
    return KafkaStage(spark, broker, tmp_path, f"g{abs(hash(request.node.name)) % 10**9}")


# -- examples --------------------------------------------------------------------------------------------------------


def shown_by(name: str, spark: SparkSession, directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    spec = importlib.util.spec_from_file_location(f"examples.{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(spark, str(directory))
    return capsys.readouterr().out


def test_kafka_to_kafka_shows_every_result_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = shown_by("kafka_to_kafka", spark, tmp_path, capsys)
    records, results = map(int, re.findall(r"(\d+) records in the topic, (\d+) results", shown)[0])
    assert records > results, "a batch was written twice"
    counts = [int(count) for count in re.findall(r"\|C\d\s*\|mean\s*\|[\d.]+\s*\|(\d+)", shown)]
    assert counts == [60] * 5, "a result for each of the 300 rows, once"


def test_kafka_to_table_has_every_row_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = shown_by("kafka_to_table", spark, tmp_path, capsys)
    assert "300 rows in the table\n300 rows after batch 2 was written again" in shown
    assert re.findall(r"\|C\d\s*\|[\d.]+\s*\|(\d+)", shown) == ["60"] * 5


def test_kafka_keyed_topic_keeps_the_order_of_each_car(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = shown_by("kafka_keyed_topic", spark, tmp_path, capsys)
    laps = re.findall(r"\|(C\d)\s*\|\d\s*\|(\d+)\s*\|(\d+)\s*\|(\d+)", shown)
    assert sorted(laps) == [(f"C{car}", "40", "90", "90") for car in range(5)]


# -- the guide -------------------------------------------------------------------------------------------------------


def send_cars(bootstrap: str, first: int, rows: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for row in range(first, first + rows):
        producer.produce("cars", key=f"C{row % 5}", value=str(60 + row * 7 % 40))
    producer.flush()


@pytest.mark.timeout(600)
def test_the_guide_to_kafka_runs(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    """All snippets but those about jars, one after another; then the first batch is sent to the database again."""
    with_connector(spark)
    for topic in ("cars", "speeds"):
        broker.create(topic, partitions=2)
    send_cars(broker.bootstrap, 0, 200)
    names: dict[str, Any] = {"spark": spark, "bootstrap": broker.bootstrap, "directory": str(tmp_path)}
    try:
        for number, snippet in enumerate(snippets("docs/kafka.md")):
            if "spark.jars" not in snippet and "ADD JAR" not in snippet:
                exec(compile(snippet, f"kafka.md[{number}]", "exec"), names)
        results = names["once"].count()
        assert names["once"].where("what = 'mean'").count() == 200
        assert spark.read.parquet(f"{tmp_path}/speeds").count() == results
        seen: set[tuple[Any, ...]] = set()
        records = list(consumed(broker.bootstrap, "speeds")) * 2
        assert len(list(names["without_repeats"](records, seen))) == results
        send_again_to_database(names)
        assert stored(tmp_path / "speeds.db") == Counter({"mean": 200, "fastest": results - 200})
        rows = names["stream_once"].writeStream.format("memory").queryName("once_in_stream").start()
        rows.processAllAvailable()
        rows.stop()
        assert spark.table("once_in_stream").count() == results
    finally:
        if "flock" in names:
            names["flock"].close()


def send_again_to_database(names: dict[str, Any]) -> None:
    """As Spark does with a batch that it does not know to be committed."""
    for commit in Path(names["directory"], "query-database/commits").iterdir():
        commit.unlink()
    writer = names["stored"].writeStream.foreachBatch(names["upsert"])
    query = writer.option("checkpointLocation", f"{names['directory']}/query-database").start()
    query.processAllAvailable()
    query.stop()


def consumed(bootstrap: str, topic: str) -> Iterator[Any]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "guide", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    ends = 0
    while ends < 2:
        for record in consumer.consume(100, 0.5):
            if record.error() is not None:
                ends += 1
            else:
                yield record
    consumer.close()


def stored(path: Path) -> Counter[str]:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(path)) as database:
        return Counter(dict(database.execute("SELECT what, count(*) FROM speeds GROUP BY what")))


JARS = """
import sys
{setting}
kafka = {{"kafka.bootstrap.servers": sys.argv[1]}}
spark.range(5).selectExpr("string(id) AS value").write.format("kafka").options(topic="jars", **kafka).save()
print("read", spark.read.format("kafka").options(subscribe="jars", **kafka).load().count())
"""


@pytest.mark.long
@pytest.mark.parametrize("way", ["packages", "notebook"])
def test_the_jars_of_the_guide_are_enough(way: str, broker: KafkaBroker, tmp_path: Path) -> None:
    """Where Spark's resolver reaches Maven's repository by the address in the guide, as it stands."""
    as_packages, in_a_notebook = [each for each in snippets("docs/kafka.md") if "PROVIDER" in each]
    begin = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.master('local[2]').getOrCreate()\n"
    setting = as_packages if way == "packages" else begin + in_a_notebook
    broker.create("jars" if way == "packages" else "jars-again", 1)
    program = JARS.format(setting=setting).replace('"jars"', '"jars"' if way == "packages" else '"jars-again"')
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", program, broker.bootstrap]
    shown = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "UnknownHost" in shown.stderr or "No route to host" in shown.stderr or "Connection refused" in shown.stderr:
        pytest.skip("Maven's repository cannot be reached by its address")
    assert "read 5" in shown.stdout, shown.stderr[-3_000:]


# -- repeats ---------------------------------------------------------------------------------------------------------


def test_a_key_in_several_partitions_gives_equal_repeats_if_spark_partitions_by_key(stage: KafkaStage) -> None:
    """A task fails behind the operator, and the batch is read again by a new run: the same results leave again."""
    from tests.spark.kafka_stage import OPERATOR, Counted

    marker = stage.root / "failed"

    def fails_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if not marker.exists():
                marker.touch()
                raise RuntimeError("a task that fails when its rows are written")

    with flock(stage.spark, stage.root) as birds:
        frame = birds.process(stage.rows(), "key", Counted(), name=OPERATOR, partitions=2)
        stage.send(300, scattered=True)
        with pytest.raises(StreamingQueryException, match="a task that fails"):
            stage.query(frame.mapInArrow(fails_once, frame.schema)).processAllAvailable()
        query = stage.query(frame.mapInArrow(fails_once, frame.schema))
        query.processAllAvailable()
        query.stop()
    by_row: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for row in stage.received():
        by_row.setdefault((row["partition"], row["offset"]), set()).add((row["key"], row["count"]))
    assert len(by_row) == 300
    assert all(len(said) == 1 for said in by_row.values()), "a repeat says what was said before"
    counts = Counter(said for each in by_row.values() for said in each)
    assert counts == Counter((key, n + 1) for key, rows in stage.sent.items() for n in range(rows))


# -- by what rows are recognised -------------------------------------------------------------------------------------


def definition(frame: DataFrame) -> Definition:
    return Definition(frame, ("key",), None, "op", "row", None, "append", "none", {})  # type: ignore[arg-type]


def known_by(frame: DataFrame) -> str:
    identity: RowIdentity | None = row_identity(definition(frame))
    return numbering(definition(frame), identity)


def test_columns_of_kafka_with_other_names_are_not_used(stage: KafkaStage) -> None:
    renamed = stage.rows().withColumnRenamed("offset", "place")
    assert known_by(renamed) == "position"
    assert known_by(stage.rows().withColumnRenamed("offset", "Offset2").withColumnRenamed("Offset2", "offset")) in (
        "columns",
        "position",
    )


def test_by_what_other_rows_are_recognised(stage: KafkaStage) -> None:
    rows = stage.rows()
    right = stage.spark.createDataFrame(
        [(1, "x")], StructType([StructField("key", rows.schema["key"].dataType), StructField("word", StringType())])
    )
    assert known_by(rows) == "columns"
    for frame in (rows.select("*", sf.explode(sf.array(sf.lit(1), sf.lit(2))).alias("part")), rows.union(rows)):
        assert known_by(frame) == "position"
    for frame in (rows.dropDuplicates(), rows.join(right, "key"), rows.repartition(3)):
        assert known_by(frame) == "content"
    from tests.spark.kafka_stage import Counted

    with flock(stage.spark, stage.root, hosts=1) as birds:
        assert known_by(birds.process(rows, "key", Counted(), name="first")) == "position"

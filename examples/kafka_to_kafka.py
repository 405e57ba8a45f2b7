"""Kafka to Kafka: a reader who skips repeats sees every result once, although Spark may write a result twice."""

import tempfile
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor

import godwit
from godwit.testing.kafka import KafkaBroker, connector_jars

RESULT = "car string, what string, value double, topic string, partition int, offset long, number int"
IDENTITY = [
    "topic",
    "partition",
    "offset",
    "number",
]  # the input row of a result, and its number among the row's results


class Speeds(StatefulProcessor):
    """For every row the mean speed of its car so far, and a second result if the car has never been faster."""

    def init(self, handle):
        self.speeds = handle.getValueState("speeds", "total double, n long, fastest double")

    def handleInputRows(self, key, rows, timerValues):
        total, n, fastest = self.speeds.get() or (0.0, 0, 0.0)
        for row in rows:
            total, n = total + row.speed, n + 1
            results = [("mean", total / n)] + ([("fastest", row.speed)] if row.speed > fastest else [])
            fastest = max(fastest, row.speed)
            for number, (what, value) in enumerate(results):
                yield Row(key[0], what, value, row.topic, row.partition, row.offset, number)
        self.speeds.update((total, n, fastest))


def send(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for row in range(300):
        producer.produce("cars", key=f"C{row % 5}", value=str(60 + row * 7 % 40))
    producer.flush()


def run(spark: SparkSession, kafka: dict[str, str], directory: str) -> None:
    reader = spark.readStream.format("kafka").options(subscribe="cars", startingOffsets="earliest", **kafka)
    records = reader.option("maxOffsetsPerTrigger", 100).load()
    cars = records.selectExpr("string(key) AS car", "double(string(value)) AS speed", "topic", "partition", "offset")
    with godwit.Flock(spark, hosts=2, checkpoint=f"{directory}/godwit") as flock:
        speeds = flock.transformWithState(cars, "car", Speeds(), RESULT, name="speeds")
        writer = speeds.selectExpr("car AS key", "to_json(struct(*)) AS value").writeStream.format("kafka")
        writer = writer.options(topic="speeds", checkpointLocation=f"{directory}/query", **kafka)
        writer.trigger(availableNow=True).start().awaitTermination()


def main(spark: SparkSession, directory: str) -> None:
    for jar in connector_jars():  # docs/kafka.md: how an application of your own gets them
        spark.sql(f"ADD JAR '{jar}'")
    with KafkaBroker(f"{directory}/kafka") as broker:
        for topic in ("cars", "speeds"):
            broker.create(topic, partitions=2)
        send(broker.bootstrap)
        kafka = {"kafka.bootstrap.servers": broker.bootstrap}
        run(spark, kafka, directory)
        for commit in Path(directory, "query/commits").glob("*2*"):
            commit.unlink()  # as if the program had been killed after it wrote batch 2: it writes batch 2 again
        run(spark, kafka, directory)
        records = spark.read.format("kafka").options(subscribe="speeds", **kafka).load()
        results = records.selectExpr(f"from_json(string(value), '{RESULT}') AS result").select("result.*")
        once = results.dropDuplicates(IDENTITY)
        print(f"{results.count()} records in the topic, {once.count()} results")
        newest = once.groupBy("car", "what").agg(sf.max_by("value", "offset").alias("newest"), sf.count("*"))
        newest.orderBy("car", "what").show(truncate=False)


if __name__ == "__main__":
    session = SparkSession.builder.master("local[4]").config("spark.ui.showConsoleProgress", False).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as scratch:
        main(session, scratch)

"""A keyed topic with `partitions="input"`: no exchange, and each car sees its rows in the order of its Kafka partition."""

import tempfile

from confluent_kafka import Producer
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor

import godwit
from godwit.testing.kafka import KafkaBroker, connector_jars


class Laps(StatefulProcessor):
    """The seconds of each lap: from the previous row of the car to this row. They are right only if rows come in order."""

    def init(self, handle):
        self.previous = handle.getValueState("previous", "second long")

    def handleInputRows(self, key, rows, timerValues):
        previous = self.previous.get()
        second = previous[0] if previous else 0
        for row in rows:
            lap_s, second = row.second - second, row.second
            yield Row(car=key[0], partition=row.partition, lap_s=lap_s)
        self.previous.update((second,))


def send(bootstrap: str) -> None:
    """40 laps of 90 seconds for each car. The partition follows from the key, as with the producers of Java and Spark."""
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2"})
    for lap in range(1, 41):
        for car in range(5):
            producer.produce("laps", key=f"C{car}", value=str(90 * lap))
    producer.flush()


def main(spark: SparkSession, directory: str) -> None:
    for jar in connector_jars():  # docs/kafka.md: how an application of your own gets them
        spark.sql(f"ADD JAR '{jar}'")
    with KafkaBroker(f"{directory}/kafka") as broker:
        broker.create("laps", partitions=3)
        send(broker.bootstrap)
        rows = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .options(subscribe="laps", startingOffsets="earliest", maxOffsetsPerTrigger=50)
            .load()
            .selectExpr("string(key) AS car", "bigint(string(value)) AS second", "partition", "offset")
        )
        with godwit.Flock(spark, hosts=2, checkpoint=f"{directory}/godwit") as flock:
            result = "car string, partition int, lap_s long"
            laps = flock.transformWithState(rows, "car", Laps(), result, name="laps", partitions="input")
            writer = laps.writeStream.format("parquet").option("checkpointLocation", f"{directory}/query")
            query = writer.trigger(availableNow=True).start(f"{directory}/laps")
            query.awaitTermination()
            print(f"{query.lastProgress['batchId'] + 1} batches")
    laps = spark.read.parquet(f"{directory}/laps").groupBy("car", "partition")
    laps.agg(sf.count("lap_s"), sf.min("lap_s"), sf.max("lap_s")).orderBy("car").show(truncate=False)


if __name__ == "__main__":
    session = SparkSession.builder.master("local[4]").config("spark.ui.showConsoleProgress", False).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as scratch:
        main(session, scratch)

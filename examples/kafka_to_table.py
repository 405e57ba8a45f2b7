"""Kafka to a table of Parquet files: one directory for each batch, so a batch that Spark writes again replaces itself."""

import tempfile
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor

import godwit
from godwit.testing.kafka import KafkaBroker, connector_jars


class AverageSpeed(StatefulProcessor):
    def init(self, handle):
        self.average = handle.getValueState("average", "mean double, n long")

    def handleInputRows(self, key, rows, timerValues):
        mean, n = self.average.get() or (0.0, 0)
        for row in rows:
            mean, n = (mean * n + row.speed) / (n + 1), n + 1
            yield Row(car=key[0], mean=mean, n=n)
        self.average.update((mean, n))


def send(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for row in range(300):
        producer.produce("cars", key=f"C{row % 5}", value=str(60 + row * 7 % 40))
    producer.flush()


def run(spark: SparkSession, bootstrap: str, directory: str) -> None:
    def save(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{directory}/speeds/batch={batch}")

    cars = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(subscribe="cars", startingOffsets="earliest", maxOffsetsPerTrigger=100)
        .load()
        .selectExpr("string(key) AS car", "double(string(value)) AS speed", "topic", "partition", "offset")
    )
    with godwit.Flock(spark, hosts=2, checkpoint=f"{directory}/godwit") as flock:
        speeds = flock.transformWithState(cars, "car", AverageSpeed(), "car string, mean double, n long", name="speed")
        writer = speeds.writeStream.foreachBatch(save).option("checkpointLocation", f"{directory}/query")
        writer.trigger(availableNow=True).start().awaitTermination()


def main(spark: SparkSession, directory: str) -> None:
    table = f"{directory}/speeds"
    for jar in connector_jars():  # docs/kafka.md: how an application of your own gets them
        spark.sql(f"ADD JAR '{jar}'")
    with KafkaBroker(f"{directory}/kafka") as broker:
        broker.create("cars", partitions=2)
        send(broker.bootstrap)
        run(spark, broker.bootstrap, directory)
        print(f"{spark.read.parquet(table).count()} rows in the table")
        for commit in Path(directory, "query/commits").glob("*2*"):
            commit.unlink()  # as if the program had been killed after it wrote batch 2: it writes batch 2 again
        run(spark, broker.bootstrap, directory)
        print(f"{spark.read.parquet(table).count()} rows after batch 2 was written again")
    means = spark.read.parquet(table).groupBy("car").agg(sf.max_by("mean", "n").alias("mean"), sf.count("n"))
    means.orderBy("car").show(truncate=False)


if __name__ == "__main__":
    session = SparkSession.builder.master("local[4]").config("spark.ui.showConsoleProgress", False).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as scratch:
        main(session, scratch)

"""Event-time windows as a native operator: mean speed per car and ten seconds."""

import tempfile

from pyspark.sql import SparkSession

import godwit
from godwit.spark import workload_source as workload


def main(spark: SparkSession, directory: str) -> None:
    workload.register(spark)
    cars = (
        spark.readStream.format("godwit-workload")
        .options(workload="traffic", keys=3, rows=3000, rows_per_second=100, rows_per_batch=1000, start=0)
        .load()
        .withWatermark("due", "1 second")
    )
    mean_speed = godwit.windows.EventTumbling(
        size="10 seconds", time_column="due", aggregates={"mean": ("avg", "speed"), "n": ("count",)}
    )
    with godwit.Flock(spark, hosts=2, checkpoint=f"{directory}/godwit") as flock:
        windows = flock.process(cars, "car", mean_speed, timeMode="eventTime", name="mean-speed")
        query = (
            windows.writeStream.format("parquet")
            .option("checkpointLocation", f"{directory}/spark")
            .start(f"{directory}/windows")
        )
        query.processAllAvailable()
    spark.read.parquet(f"{directory}/windows").orderBy("car", "window").show(truncate=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(godwit.tune(SparkSession.builder.master("local[4]")).getOrCreate(), scratch)

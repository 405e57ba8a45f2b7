"""A PySpark StatefulProcessor, unchanged, on resident state."""

import tempfile

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import godwit
from godwit.spark import workload_source as workload


class AverageSpeed(StatefulProcessor):
    def init(self, handle):
        self.average = handle.getValueState("average", "mean double, n long")

    def handleInputRows(self, key, rows, timerValues):
        mean, n = self.average.get() or (0.0, 0)
        for row in rows:
            mean, n = (mean * n + row.speed) / (n + 1), n + 1
            yield Row(car=key[0], mean=mean, n=n)
        self.average.update((mean, n))


def main(spark: SparkSession, directory: str) -> None:
    workload.register(spark)
    cars = (
        spark.readStream.format("godwit-workload")
        .options(workload="traffic", keys=5, rows=1000, rows_per_second=0, rows_per_batch=500)
        .load()
    )
    with godwit.Flock(spark, hosts=2, checkpoint=f"{directory}/godwit") as flock:
        speeds = flock.transformWithState(cars, "car", AverageSpeed(), "car string, mean double, n long", name="speed")
        query = (
            speeds.writeStream.format("parquet")
            .option("checkpointLocation", f"{directory}/spark")
            .start(f"{directory}/speeds")
        )
        query.processAllAvailable()
        flock.state("speed").orderBy("car").show(truncate=False)
    spark.read.parquet(f"{directory}/speeds").groupBy("car").count().orderBy("car").show()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(godwit.tune(SparkSession.builder.master("local[4]")).getOrCreate(), scratch)

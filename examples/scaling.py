"""A query that goes on while its flock grows from two hosts to three and one car moves to the new one."""

import tempfile
import time

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
        .options(workload="traffic", keys=12, rows=4000, rows_per_second=500)
        .load()
    )
    with godwit.Flock(spark, hosts=2, checkpoint=f"{directory}/godwit") as flock:
        speeds = flock.transformWithState(cars, "car", AverageSpeed(), "car string, mean double, n long", name="speed")
        query = (
            speeds.writeStream.format("parquet")
            .option("checkpointLocation", f"{directory}/spark")
            .start(f"{directory}/speeds")
        )
        while not query.recentProgress:  # until there is state to move
            time.sleep(0.1)

        grown = flock.scale(3)  # live: the query runs on
        car = flock.state("speed").where("host = 'host-0'").orderBy("car").first()["car"]
        flock.move("speed", keys=[car], to="host-2")

        told = grown.report()
        print(
            f"{told['groups_moved']} groups moved (the least possible: {told['groups_minimum']}), {told['keys']} keys"
        )
        print(f"then {car} alone, from host-0 to host-2")
        print(flock.routing("speed"))
        query.processAllAvailable()
        flock.state("speed").select("car", "host", "epoch", "average").orderBy("car").show(truncate=False)
    counted = spark.read.parquet(f"{directory}/speeds").selectExpr("count(*) AS rows", "count(DISTINCT car, n) AS told")
    assert counted.first() == (4000, 4000), "each row has been counted once"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(godwit.tune(SparkSession.builder.master("local[6]")).getOrCreate(), scratch)

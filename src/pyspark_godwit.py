"""Makes `spark.read.format("godwit")` known to Spark, which imports all installed modules whose names begin with `pyspark_`."""

from godwit.spark.checkpoint.data_source import StateSource as DefaultSource

__all__ = ["DefaultSource"]

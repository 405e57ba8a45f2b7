"""Makes `spark.read.format("godwit")` known to Spark, which imports all installed modules whose names begin with `pyspark_`."""

from contextlib import suppress

from godwit.errors import DefinitionError

with suppress(DefinitionError):  # of another version of PySpark, whose users must be able to read other formats
    from godwit.spark.checkpoint.data_source import StateSource as DefaultSource

__all__ = ["DefaultSource"]

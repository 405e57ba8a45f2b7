"""Everything that imports pyspark: hosts as Spark tasks, operators as DataFrames, and changes to a running flock."""

from godwit.spark.supported_pyspark import check_pyspark

check_pyspark()

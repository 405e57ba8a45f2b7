"""Everything that imports pyspark: hosts as Spark tasks, operators as DataFrames, and changes to a running flock."""

"""A pytest plugin: makes Spark's test modules importable as part of the installed PySpark, which comes without them."""

import os
from pathlib import Path

import pyspark.sql

pyspark.sql.__path__.append(str(Path(os.environ["SPARK_SUITE"], "pyspark", "sql")))

"""A DataFrame whose rows reach Python as they come, and not when an Arrow batch is full: for the real-time trigger.

The work is done by a small Java class (`RowsAsTheyCome.java`). It is compiled when it is first needed, by the compiler that
Spark brings along for the code it generates: so no JDK is needed, and it fits the Spark that runs. Spark ships it to the
executors.

Where no code may be loaded into the JVM, Spark SQL does it: every row is followed by a row of nulls, and every Arrow batch has
one row. Spark asks for the next row before it sends a batch, and there is always one. This costs more for each row.
"""

from __future__ import annotations

import logging
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from godwit.errors import DefinitionError

CLASS: Final = "godwit.RowsAsTheyCome"
SOURCE: Final = "RowsAsTheyCome.java"
ROWS_MAX: Final = 4096  # of a packet
GAP_MICROS: Final = 1_500  # between two packets of a lane, at least
UNANSWERED_MICROS: Final = 20_000  # and at most, while Python works on the packet before
WITH_JAVA: Final = "spark.godwit.java"  # false: load no code into the JVM
MODERN_DATES: Final = "spark.sql.datetime.java8API.enabled"
ARROW_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_log: Final = logging.getLogger("godwit.operators")


def as_they_come(frame: DataFrame, tick_ms: int = 0) -> DataFrame:
    """The rows, and rows of nulls among them.

    tick_ms: a row of nulls after so long a silence, so that timers fire; 0: none. Without Java such rows come behind rows only.
    """
    packing = _packing(frame.sparkSession)
    return _one_by_one(frame) if packing is None else _in_packets(frame, packing, tick_ms)


def _packing(spark: Any) -> Any:
    """The Java class; None if Spark does not take it, or may not."""
    if str(spark.conf.get(WITH_JAVA, "true")).lower() == "false":
        return None
    try:
        return _class(spark)
    except Py4JJavaError as error:
        reason = str(error.java_exception)
        _log.warning("rows reach Python one by one, which costs more: Spark does not take the Java class (%s)", reason)
        return None


def _in_packets(frame: DataFrame, packing: Any, tick_ms: int) -> DataFrame:
    spark: Any = frame.sparkSession
    nullable = StructType([StructField(field.name, field.dataType) for field in frame.schema.fields])
    schema = spark._jvm.org.apache.spark.sql.types.DataType.fromJson(nullable.json())
    given = spark.sparkContext._gateway.new_array(spark._jvm.java.lang.Object, 1)
    given[0] = f"{ROWS_MAX} {GAP_MICROS} {UNANSWERED_MICROS} {tick_ms} {len(nullable)}"
    made = packing.getConstructors()[0].newInstance(given)
    with _dates_of_one_calendar(spark):
        rows: Any = frame._jdf.toDF()
        packed = rows.mapPartitions(made, spark._jvm.org.apache.spark.sql.Encoders.row(schema))
    return DataFrame(packed, spark)


@contextmanager
def _dates_of_one_calendar(spark: SparkSession) -> Iterator[None]:
    """By default, days and instants are objects of a calendar in which ten days of the year 1582 are missing."""
    before = spark.conf.get(MODERN_DATES)
    spark.conf.set(MODERN_DATES, "true")
    try:
        yield
    finally:
        spark.conf.set(MODERN_DATES, str(before))


def _one_by_one(frame: DataFrame) -> DataFrame:
    if frame.sparkSession.conf.get(ARROW_ROWS) != "1":
        raise DefinitionError(
            f"without Java, rows wait in Arrow batches of {frame.sparkSession.conf.get(ARROW_ROWS)} rows",
            todo=f"Set {ARROW_ROWS} to 1, or {WITH_JAVA} to true",
        )
    row = sf.struct(*(sf.col(f"`{name}`") for name in frame.columns))
    return frame.select(sf.explode(sf.array(row, sf.lit(None))).alias("row")).select("row.*")


def _class(spark: Any) -> Any:
    """The Java class, which all class loaders of this application know afterwards."""
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    try:
        return loader.loadClass(CLASS)
    except Py4JJavaError:
        spark.sql(f"ADD JAR '{_jar(spark)}'")
        return loader.loadClass(CLASS)


def _jar(spark: Any) -> Path:
    source = resources.files("godwit.spark.realtime").joinpath(SOURCE).read_text()
    compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(spark._jsparkSession.sharedState().jarClassLoader())
    compiler.cook(source)
    jar = Path(tempfile.mkdtemp(prefix="godwit-")) / "godwit.jar"
    with zipfile.ZipFile(jar, "w") as packed:
        for name, code in compiler.getBytecodes().items():
            packed.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    return jar

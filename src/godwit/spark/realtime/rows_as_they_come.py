"""A DataFrame whose rows reach Python as they come, and not when an Arrow batch is full: for the real-time trigger.

The work is done by a small Java class (`RowsAsTheyCome.java`). It is compiled when it is first needed, by the compiler that
Spark brings along for the code it generates: so no JDK is needed, and it fits the Spark that runs. Spark ships it to the
executors.
"""

from __future__ import annotations

import tempfile
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

CLASS: Final = "godwit.RowsAsTheyCome"
SOURCE: Final = "RowsAsTheyCome.java"
ROWS_MAX: Final = 4096  # of a packet
GAP_MICROS: Final = 1_500  # between two packets of a lane, at least


def as_they_come(frame: DataFrame, tick_ms: int = 0) -> DataFrame:
    """tick_ms: a row of nulls after so long a silence, so that timers fire; 0: none."""
    spark: Any = frame.sparkSession
    nullable = StructType([StructField(field.name, field.dataType) for field in frame.schema.fields])
    schema = spark._jvm.org.apache.spark.sql.types.DataType.fromJson(nullable.json())
    packing = _class(spark).getConstructors()[0]
    given = spark.sparkContext._gateway.new_array(spark._jvm.java.lang.Object, 1)
    given[0] = f"{ROWS_MAX} {GAP_MICROS} {tick_ms} {len(nullable)}"
    rows = frame._jdf.mapPartitions(packing.newInstance(given), spark._jvm.org.apache.spark.sql.Encoders.row(schema))
    return DataFrame(rows, frame.sparkSession)


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

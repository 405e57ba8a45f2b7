"""Schemas as PySpark users write them, converted to Arrow; without a JVM too, because hosts and tests have none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.core.context import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as sql
from pyspark.sql.pandas.types import to_arrow_schema

from godwit.errors import DefinitionError

_NOT_PLAIN: Final = (sql.UserDefinedType, sql.VariantType)


def variable_schema(schema: Any, variable: str) -> pa.Schema:
    """The Arrow form of a state variable's schema, which is a StructType or a DDL string, as in PySpark."""
    struct = parse_ddl(schema) if isinstance(schema, str) else schema
    if not isinstance(struct, sql.StructType):
        raise DefinitionError(
            f"the schema of state variable {variable!r} must be a StructType or a DDL string, not {schema!r:.80}",
            todo="Give the names and types of its fields, such as 'count bigint'",
            variable=variable,
        )
    try:
        odd = next((kind for kind in _types(struct) if isinstance(kind, _NOT_PLAIN)), None)
        if odd is None:
            return to_arrow_schema(struct, timezone="UTC", prefers_large_types=False)
        why = f"{odd.simpleString()} is not supported in state"
    except PySparkException as error:
        why = str(error)
    raise DefinitionError(
        f"state variable {variable!r} has a field of a type that cannot be stored: {why}",
        todo="Store the value as a struct, a string or bytes",
        variable=variable,
    )


def _types(kind: sql.DataType) -> Iterator[sql.DataType]:
    yield kind
    for inner in vars(kind).values():
        for part in inner if isinstance(kind, sql.StructType) and isinstance(inner, list) else (inner,):
            inner_kind = part.dataType if isinstance(part, sql.StructField) else part
            if isinstance(inner_kind, sql.DataType):
                yield from _types(inner_kind)


_ATOMIC: Final[Mapping[str, sql.DataType]] = {
    name: kind
    for names, kind in (
        ("boolean", sql.BooleanType()),
        ("byte tinyint", sql.ByteType()),
        ("short smallint", sql.ShortType()),
        ("int integer", sql.IntegerType()),
        ("long bigint", sql.LongType()),
        ("float real", sql.FloatType()),
        ("double", sql.DoubleType()),
        ("string", sql.StringType()),
        ("binary", sql.BinaryType()),
        ("date", sql.DateType()),
        ("timestamp timestamp_ltz", sql.TimestampType()),
        ("timestamp_ntz", sql.TimestampNTZType()),
    )
    for name in names.split()
}
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[<>(),:]|\S)")


def parse_ddl(text: str) -> sql.StructType:
    """A DDL string such as `id string, at timestamp NOT NULL`, read without a JVM; a JVM, if there is one, reads the rest."""
    tokens = [token for token in _TOKEN.findall(text) if token]
    try:
        return sql.StructType(_fields(tokens[::-1], ""))
    except (IndexError, KeyError, ValueError):
        pass
    if tokens and SparkContext._active_spark_context is not None:
        try:
            return cast(sql.StructType, sql.StructType.fromDDL(text))
        except PySparkException as error:
            raise DefinitionError(
                f"the schema {text!r} cannot be read: {str(error).strip().splitlines()[0]}",
                todo="Write it as 'name type, name type'",
            ) from error
    raise DefinitionError(
        f"the schema {text!r} cannot be read", todo="Write it as 'name type, name type', or give a StructType"
    )


def _fields(rest: list[str], end: str) -> list[sql.StructField]:
    """The fields up to the token `end`. `rest` has the tokens that are not read yet, in reverse order."""
    fields = []
    while True:
        name = rest.pop()
        if not re.fullmatch(r"`.+`|\w+", name):
            raise ValueError(name)
        if rest[-1] == ":":
            rest.pop()
        kind, nullable = _type(rest), True
        if [word.lower() for word in rest[:-3:-1]] == ["not", "null"]:
            del rest[-2:]
            nullable = False
        if rest and rest[-1].lower() == "comment":
            del rest[-2:]
        fields.append(sql.StructField(name.strip("`").replace("``", "`"), kind, nullable))
        separator = rest.pop() if rest else ""
        if separator == end:
            return fields
        if separator != ",":
            raise ValueError(separator)


def _type(rest: list[str]) -> sql.DataType:
    word = rest.pop().lower()
    if word in ("decimal", "dec", "numeric"):
        return sql.DecimalType(*_numbers(rest))
    if word not in ("array", "map", "struct"):
        return _ATOMIC[word]
    _expect(rest, "<")
    if word == "struct":
        return sql.StructType(_fields(rest, ">"))
    first = _type(rest)
    if word == "map":
        _expect(rest, ",")
        made: sql.DataType = sql.MapType(first, _type(rest))
    else:
        made = sql.ArrayType(first)
    _expect(rest, ">")
    return made


def _numbers(rest: list[str]) -> list[int]:
    numbers: list[int] = []
    if rest and rest[-1] == "(":
        while rest.pop() in "(,":
            numbers.append(int(rest.pop()))
    return numbers


def _expect(rest: list[str], token: str) -> None:
    if rest.pop() != token:
        raise ValueError(token)


def input_schema(frame: DataFrame) -> pa.Schema:
    """The Arrow schema in which Spark hands the rows to Python."""
    return arrow_schema(frame.schema, session_zone(frame), "the input")


def session_zone(frame: DataFrame) -> str:
    return str(frame.sparkSession.conf.get("spark.sql.session.timeZone"))


def arrow_schema(struct: sql.StructType, tz: str, what: str) -> pa.Schema:
    try:
        return to_arrow_schema(struct, timezone=tz)
    except PySparkException as error:
        raise DefinitionError(f"{what} has a column of a type that Python workers cannot have: {error}") from error

"""`spark.read.format("godwit")`: committed state of a checkpoint as a Spark data source, without opening the checkpoint.

With the options `path` and `operator` a row per key: key columns, host, epoch, a column per state variable, timers. Without
`operator` a row per operator and state variable: what the checkpoint contains. A flock that has the checkpoint open, was
stopped or was killed is not disturbed: the changelogs of its hosts are read, and nothing is written.

Spark plans and reads a Python data source in worker processes that have no SparkSession, so everything is read from files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualNullSafe, EqualTo, Filter, In, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from godwit.errors import DefinitionError
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.reading.log_reader import LogReader
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.checkpoint.run_admission import LAST, Binding
from godwit.spark.checkpoint.shown_state import shown_columns, shown_rows, shown_schema
from godwit.spark.checkpoint.state_view import groups_by_host, known_operator
from godwit.state.keys import KeyCodec

OPTIONS: Final = ("path", "operator", "committedbatch")
PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
OPERATORS: Final = (
    "operator string, processor string, timeMode string, key string, variable string, kind string, column string, type string, "
    "ttlMs long, "
    "query string, queryCheckpoint string"
)


class StateSource(DataSource):
    """Registered under its name by `pyspark_godwit`, which Spark looks for by itself."""

    @classmethod
    def name(cls) -> str:
        return "godwit"

    def schema(self) -> StructType | str:
        directory, operator = self._opened()
        if operator is None:
            return OPERATORS
        return from_arrow_schema(shown_schema(known_operator(directory, operator)[0]), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        directory, operator = self._opened()
        if operator is None:
            return OperatorsReader(str(directory.path))
        spec, binding = known_operator(directory, operator)
        committed = self._committed(binding)
        parts = groups_by_host(directory, spec.name)
        reader = LogReader(spec, str(directory.path), parts, committed, rows_of=shown_rows)
        # Spark refuses a reader that takes filters while filters are not pushed down, so it gets one that takes none.
        pushed = sys._getframe(1).f_globals["__name__"] == PUSHDOWN_WORKER
        return FilteredStateReader(reader) if pushed else StateSourceReader(reader)

    def _opened(self) -> tuple[FlockDirectory, str | None]:
        unknown = sorted({name.lower() for name in self.options} - set(OPTIONS))
        if unknown:
            raise DefinitionError(f"unknown option {unknown[0]!r}", todo="Use path, operator and committedBatch")
        path = self.options.get("path")
        if not path:
            raise DefinitionError(
                "the option path is missing",
                todo='Give the directory: .option("path", checkpoint), or .load(checkpoint)',
            )
        return FlockDirectory.existing(path), self.options.get("operator")

    def _committed(self, binding: Binding | None) -> int:
        given = self.options.get("committedbatch")
        if given is not None:
            return _whole(given)
        if binding is None:
            return -1
        location = urlsplit(binding.checkpoint)
        if location.scheme not in ("", "file"):
            raise DefinitionError(
                f"Spark's checkpoint of the query is at {binding.checkpoint}, which is not a directory of this machine",
                todo='Give the newest committed batch: .option("committedBatch", n); godwit.read_state finds it by itself',
            )
        path = Path(location.path)
        return LAST if binding.temporary and not path.exists() else newest_commit(path)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise DefinitionError(f"committedBatch={text!r} is not a whole number", todo="Give a batch id") from None


def newest_commit(checkpoint: Path) -> int:
    """The newest batch in Spark's commit log; -1 before the first."""
    commits = checkpoint / "commits"
    names = [path.name for path in commits.iterdir()] if commits.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Values that key columns may have: a column that is not named may have any."""

    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name, values in self.allowed.items():
            column = batch.column(batch.schema.get_field_index(name))
            batch = batch.filter(pc.is_in(column, value_set=pa.array(values, column.type)))
        return batch

    def groups(self, spec: OperatorSpec, count: int) -> frozenset[int] | None:
        """The groups that the keys are in, if every key column is named; None if any group may have one."""
        names = spec.key_schema.names
        if set(names) - self.allowed.keys():
            return None
        codec = KeyCodec(spec.key_schema, spec.tz)
        rows = list(product(*(self.allowed[name] for name in names)))
        columns = [pa.array([row[at] for row in rows], column.type) for at, column in enumerate(codec.schema)]
        return frozenset(codec.route_hash(key) % count for key in codec.from_arrow(columns))


@dataclass(frozen=True, slots=True)
class HostPartition(InputPartition):
    """The groups that one host was known to own."""

    value: int


class StateSourceReader(DataSourceReader):
    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def partitions(self) -> list[HostPartition]:
        return [HostPartition(at) for at, (_, groups) in enumerate(self._reader.parts) if groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._reader.read(partition.value)


class FilteredStateReader(StateSourceReader):
    """Where Spark pushes filters down: of the keys that are asked for, only the hosts that own them are read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        allowed: dict[str, tuple[Any, ...]] = {}
        left: list[Filter] = []
        for each in filters:
            name, values = _values(each)
            if name is None or name in allowed or not self._pushes(name):
                left.append(each)
            else:
                allowed[name] = values
        self._reader = self._reader.only(KeyFilter(allowed)) if allowed else self._reader
        return left

    def _pushes(self, name: str) -> bool:
        """Key columns that are stored as they are shown."""
        spec = self._reader.spec
        if name not in spec.key_schema.names:
            return False
        shown = spec.key_schema.field(name).type
        simple = pa.types.is_string(shown) or pa.types.is_integer(shown) or pa.types.is_boolean(shown)
        return simple and KeyCodec(spec.key_schema, spec.tz).schema.field(name).type == shown


def _values(each: Filter) -> tuple[str | None, tuple[Any, ...]]:
    """The column of a filter and the values that it lets through. In SQL, `=` and `IN` never let a null through."""
    match each:
        case EqualNullSafe(attribute=(name,), value=value):
            return name, (value,)
        case EqualTo(attribute=(name,), value=value):
            return name, () if value is None else (value,)
        case In(attribute=(name,), value=values):
            return name, tuple(value for value in values if value is not None)
        case _:
            return None, ()


class OperatorsReader(DataSourceReader):
    """What the checkpoint contains: a row per operator and state variable."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        directory = FlockDirectory.existing(self._path)
        for name in directory.operators():
            spec, binding = known_operator(directory, name)
            key = ", ".join(f"{column.name} {column.type}" for column in spec.key_schema)
            bound = (None, None) if binding is None else (binding.query, binding.checkpoint)
            for column in shown_columns(spec):
                variable, shown = column.variable, column.field
                if variable is not None:
                    described = (variable.name, variable.kind, shown.name, str(shown.type), variable.ttl_ms)
                    yield (spec.name, spec.processor, spec.time_mode, key, *described, *bound)

"""`spark.read.format("godwit")`: committed state of a checkpoint as a Spark data source, without opening the checkpoint.

With the options `path` and `operator` a row per key: key columns, host, epoch, a column per state variable, timers; with
`stateVarName` or `readRegisteredTimers` the rows of Spark's own state reader. Without `operator` a row per operator and
state variable: what the checkpoint contains. A flock that has the checkpoint open, was
stopped or was killed is not disturbed: the changelogs of its hosts are read, and nothing is written.

Spark plans and reads a Python data source in worker processes that have no SparkSession, so everything is read from files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from godwit.errors import DefinitionError
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.reading.log_reader import LogReader, every
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.checkpoint.one_variable import KEY, OneVariable
from godwit.spark.checkpoint.run_admission import LAST, Binding
from godwit.spark.checkpoint.shown_state import shown_columns, shown_rows, shown_schema
from godwit.spark.checkpoint.state_view import groups_by_host, known_operator
from godwit.spark.task_errors import plain_errors
from godwit.state.keys import KeyCodec

OPTIONS: Final = (
    "path",
    "operator",
    "committedBatch",
    "stateVarName",
    "readRegisteredTimers",
    "flattenCollectionTypes",
)
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

    @plain_errors()
    def schema(self) -> StructType | str:
        directory, operator = self._opened()
        if operator is None:
            return OPERATORS
        spec, _ = known_operator(directory, operator)
        one = self._one_variable(directory, spec)
        return from_arrow_schema(shown_schema(spec) if one is None else one.schema(), prefer_timestamp_ntz=True)

    def streamReader(self, schema: StructType) -> NoStream:
        return NoStream()

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        with plain_errors():
            raise _only_a_batch("to write to")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        with plain_errors():
            raise _only_a_batch("to write to")

    def reader(self, schema: StructType) -> DataSourceReader:
        # Spark refuses a reader that takes filters while filters are not pushed down, so it gets one that takes none.
        pushed = sys._getframe(1).f_globals["__name__"] == PUSHDOWN_WORKER
        with plain_errors():
            return self._reader(pushed)

    def _reader(self, pushed: bool) -> DataSourceReader:
        directory, operator = self._opened()
        if operator is None:
            return OperatorsReader(str(directory.path))
        spec, binding = known_operator(directory, operator)
        committed = self._committed(binding)
        parts = groups_by_host(directory, spec.name)
        one = self._one_variable(directory, spec)
        rows_of, shape = (shown_rows, every) if one is None else (one.rows, one.as_spark)
        asked = "committedbatch" in self.options
        reader = LogReader(spec, str(directory.path), parts, committed, rows_of=rows_of, asked=asked)
        above = () if one is None else (KEY,)
        return FilteredStateReader(reader, shape, above) if pushed else StateSourceReader(reader, shape)

    def _one_variable(self, directory: FlockDirectory, spec: OperatorSpec) -> OneVariable | None:
        """What the options of Spark's own state reader ask for, if they are given."""
        name, timers = self.options.get("statevarname"), self._flag("readregisteredtimers", False)
        if name is None and not timers:
            return None
        if name is not None and timers:
            raise DefinitionError(
                "stateVarName and readRegisteredTimers are given, and only one of them can be shown",
                todo="Read the state variable and the timers one after the other",
                operator=spec.name,
            )
        groups = sum(len(groups) for _, groups in groups_by_host(directory, spec.name))
        return OneVariable.named(spec, name, self._flag("flattencollectiontypes", True), groups)

    def _flag(self, name: str, default: bool) -> bool:
        given = self.options.get(name, str(default)).lower()
        if given not in ("true", "false"):
            raise DefinitionError(f"{_spelled(name)}={given!r} is neither true nor false", todo="Give true or false")
        return given == "true"

    def _opened(self) -> tuple[FlockDirectory, str | None]:
        unknown = sorted({name.lower() for name in self.options} - {name.lower() for name in OPTIONS})
        if unknown:
            raise DefinitionError(f"unknown option {unknown[0]!r}", todo=f"The options are {', '.join(OPTIONS)}")
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


def _only_a_batch(how: str) -> DefinitionError:
    return DefinitionError(
        f"the state of a checkpoint cannot be used {how}: it can only be read, as of a batch",
        todo='Use spark.read.format("godwit"), again and again to see changes',
    )


def _spelled(option: str) -> str:
    """Spark gives the names of options in small letters."""
    return next(name for name in OPTIONS if name.lower() == option)


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
    """Values that key columns may have, by the places of the columns: one that is not named may have any.

    By place, because a key column may have the name of a column of changes.
    """

    allowed: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for place, values in self.allowed.items():
            column = batch.column(place)
            batch = batch.filter(pc.is_in(column, value_set=pa.array(values, column.type)))
        return batch

    def groups(self, spec: OperatorSpec, count: int) -> frozenset[int] | None:
        """The groups that the keys are in, if every key column is named; None if any group may have one."""
        places = range(len(spec.key_schema))
        if set(places) - self.allowed.keys():
            return None
        codec = KeyCodec(spec.key_schema, spec.tz)
        rows = list(product(*(self.allowed[place] for place in places)))
        columns = [pa.array([row[at] for row in rows], column.type) for at, column in enumerate(codec.schema)]
        return frozenset(codec.route_hash(key) % count for key in codec.from_arrow(columns))


@dataclass(frozen=True, slots=True)
class HostPartition(InputPartition):
    """The groups that one host was known to own."""

    value: int


class StateSourceReader(DataSourceReader):
    def __init__(self, reader: LogReader, shape: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._reader = reader
        self._shape = shape

    def partitions(self) -> list[HostPartition]:
        return [HostPartition(at) for at, (_, groups) in enumerate(self._reader.parts) if groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            yield from map(self._shape, self._reader.read(partition.value))


class FilteredStateReader(StateSourceReader):
    """Where Spark pushes filters down: of the keys that are asked for, only the hosts that own them are read."""

    def __init__(
        self, reader: LogReader, shape: Callable[[pa.RecordBatch], pa.RecordBatch], above: tuple[str, ...]
    ) -> None:
        super().__init__(reader, shape)
        self._above = above  # the struct that the key columns are fields of, if they are

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        allowed: dict[int, tuple[Any, ...]] = {}
        left: list[Filter] = []
        for each in filters:
            name, values = _values(each, self._above)
            place = None if name is None else self._place(name)
            if place is None or place in allowed:
                left.append(each)
            else:
                allowed[place] = values
        self._reader = self._reader.only(KeyFilter(allowed)) if allowed else self._reader
        return left

    def _place(self, name: str) -> int | None:
        """Of a key column that is stored as it is shown; None for other columns."""
        spec = self._reader.spec
        if name not in spec.key_schema.names:
            return None
        place = spec.key_schema.names.index(name)
        shown = spec.key_schema.types[place]
        simple = pa.types.is_string(shown) or pa.types.is_integer(shown) or pa.types.is_boolean(shown)
        return place if simple and KeyCodec(spec.key_schema, spec.tz).schema.types[place] == shown else None


def _values(each: Filter, above: tuple[str, ...]) -> tuple[str | None, tuple[Any, ...]]:
    """The column of a filter and the values that it lets through. In SQL, `=` and `IN` never let a null through."""
    match each:
        case EqualNullSafe(attribute=(*within, name), value=value) if tuple(within) == above:
            return name, (value,)
        case EqualTo(attribute=(*within, name), value=value) if tuple(within) == above:
            return name, () if value is None else (value,)
        case In(attribute=(*within, name), value=values) if tuple(within) == above:
            return name, tuple(value for value in values if value is not None)
        case _:
            return None, ()


class NoStream(DataSourceStreamReader):
    """Refuses when Spark asks where the stream begins: an error before that would be hidden by one of PySpark's own."""

    def initialOffset(self) -> NoReturn:
        with plain_errors():
            raise _only_a_batch("as a stream")

    def read(self, partition: InputPartition) -> NoReturn:
        raise _only_a_batch("as a stream")


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

"""The sources of an operator within a query, and the offset up to which a batch has read each of them.

A source is recognised by the ids of its columns, which are the same in the DataFrame of the operator and in the plan that Spark
runs. Offsets are texts from Spark's offset log, and are only compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from godwit.spark.checkpoint.hadoop_folder import Folder

Offsets = list[str | None]  # one per source; None if Spark has not asked the source yet
TIMER_FORMAT: Final = "godwit-timers"  # of the source by which operators with timers get batches without data
TICK: Final = "tick"  # the one field of an offset of that source
# The beginnings of the class names of streams: with a reader in a Python process, and of Kafka.
_PYTHON, _KAFKA = "Python", "Kafka"


def stream_columns(frame: DataFrame, without: str | None = None) -> frozenset[int]:
    """The ids of all columns that come from streaming sources; `without`: a format of sources that do not count."""
    jframe: Any = frame._jdf
    leaves = [
        leaf for leaf in _leaves(jframe.queryExecution().analyzed()) if without is None or _format(leaf) != without
    ]
    return frozenset(column for leaf in leaves for column in _columns(leaf))


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A streaming source in the plan of a DataFrame: the ids of its columns, and its format if the plan names one."""

    columns: frozenset[int]
    format: str | None


def stream_sources(frame: DataFrame) -> list[StreamSource]:
    """The streaming sources of a DataFrame in the order of the plan, in which Spark logs their offsets."""
    jframe: Any = frame._jdf
    leaves = _leaves(jframe.queryExecution().analyzed())
    return [StreamSource(frozenset(_columns(leaf)), _format(leaf)) for leaf in leaves]


def sources_under(execution: Any, columns: frozenset[int]) -> list[Any]:
    """The sources of a running query from which these columns come.

    If Spark has rewritten the plan so that none is recognised, all sources count: a gap must not be missed.
    """
    leaves = list(_leaves(execution.logicalPlan()))
    under = [leaf for leaf in leaves if not columns.isdisjoint(_columns(leaf))]
    return [_source(leaf) for leaf in under or leaves]


def offsets_of(execution: Any, batch: int, sources: list[Any]) -> Offsets | None:
    """The end offset of a batch in each source; None if Spark's offset log does not go back to that batch."""
    logged = execution.offsetLog().get(batch)
    if not logged.isDefined():
        return None
    by_source = logged.get().toStreamProgress(execution.sources(), execution.sourceIdMap())
    offsets = [by_source.get(source) for source in sources]
    return [offset.get().json() if offset.isDefined() else None for offset in offsets]


def initial_offsets(execution: Any, sources: list[Any], checkpoint: Folder) -> Offsets:
    """The first offset of each source. A batch that ends there has no rows, such as the first on an empty Kafka topic.

    None for a source of the older API, which begins without an offset, and for one in Python, whose process answers only the
    thread of the query. `checkpoint`: the checkpointLocation of the query.
    """
    return [_initial_offset(execution, source, checkpoint) for source in sources]


def _initial_offset(execution: Any, source: Any, checkpoint: Folder) -> str | None:
    # availableNow wraps sources without support for it
    reader = source.delegate() if _has(source, "delegate") else source
    name = reader.getClass().getSimpleName()
    if not _has(reader, "planInputPartitions") or name.startswith(_PYTHON):
        return None
    if name.startswith(_KAFKA):  # it answers no other thread than that of the query, and has written its start down
        file = f"sources/{execution.sources().indexOf(source)}/0"
        return checkpoint.read(file).rpartition("\n")[2] if checkpoint.exists(file) else None
    return str(source.initialOffset().json())


def _leaves(plan: Any) -> Iterator[Any]:
    leaves = plan.collectLeaves()
    all_leaves = (leaves.apply(i) for i in range(leaves.size()))
    return (leaf for leaf in all_leaves if leaf.isStreaming())


def _columns(leaf: Any) -> set[int]:
    output = leaf.output()
    return {output.apply(i).exprId().id() for i in range(output.size())}


def _format(leaf: Any) -> str | None:
    return leaf.sourceName() if _has(leaf, "sourceName") else None


def _source(leaf: Any) -> Any:
    return leaf.stream() if _has(leaf, "stream") else leaf.source()


def _has(thing: Any, method: str) -> bool:
    return any(one.getName() == method for one in thing.getClass().getMethods())

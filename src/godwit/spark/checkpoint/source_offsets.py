"""The streams that a query reads: which of them stand under an operator, and how far each has been read by a batch.

A stream is recognised by the ids of its columns, which are the same in the DataFrame that defined an operator and in the plan
that Spark runs. Offsets are read from Spark's offset log one by one, whatever text they are, and only compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

Offsets = list[str | None]  # one for each source; None where Spark has asked the source for nothing yet
_PYTHON = "Python"  # how Spark names the class of a stream whose reader is a Python process


def stream_columns(frame: DataFrame, without: str | None = None) -> frozenset[int]:
    """The ids of all columns that streams bring into the frame; `without` is a format whose streams do not count."""
    jframe: Any = frame._jdf
    leaves = [
        leaf for leaf in _leaves(jframe.queryExecution().analyzed()) if without is None or _format(leaf) != without
    ]
    return frozenset(column for leaf in leaves for column in _columns(leaf))


def sources_under(execution: Any, columns: frozenset[int]) -> list[Any]:
    """The sources of a running query that bring these columns.

    A plan that Spark rewrote beyond recognition makes all sources count: a gap is better asked about than passed over.
    """
    leaves = list(_leaves(execution.logicalPlan()))
    under = [leaf for leaf in leaves if not columns.isdisjoint(_columns(leaf))]
    return [_source(leaf) for leaf in under or leaves]


def offsets_of(execution: Any, batch: int, sources: list[Any]) -> Offsets | None:
    """Up to where a batch reads each source; None if Spark's offset log does not go back to that batch."""
    logged = execution.offsetLog().get(batch)
    if not logged.isDefined():
        return None
    by_source = logged.get().toStreamProgress(execution.sources(), execution.sourceIdMap())
    found = [by_source.get(source) for source in sources]
    return [offset.get().json() if offset.isDefined() else None for offset in found]


def initial_offsets(sources: list[Any]) -> Offsets:
    """Where each source begins. A batch that reads up to there has no rows, such as the first on an empty Kafka topic.

    Not known of a source of the older kind, which begins without an offset, nor of one in Python: its process answers the
    thread of the query only.
    """
    return [source.initialOffset().json() if _tells_start(source) else None for source in sources]


def _tells_start(source: Any) -> bool:
    reader = (
        source.delegate() if _has(source, "delegate") else source
    )  # availableNow wraps sources that do not know of it
    return _has(reader, "planInputPartitions") and not reader.getClass().getSimpleName().startswith(_PYTHON)


def _leaves(plan: Any) -> Iterator[Any]:
    leaves = plan.collectLeaves()
    found = (leaves.apply(i) for i in range(leaves.size()))
    return (leaf for leaf in found if leaf.isStreaming())


def _columns(leaf: Any) -> set[int]:
    output = leaf.output()
    return {output.apply(i).exprId().id() for i in range(output.size())}


def _format(leaf: Any) -> str | None:
    return leaf.sourceName() if _has(leaf, "sourceName") else None


def _source(leaf: Any) -> Any:
    return leaf.stream() if _has(leaf, "stream") else leaf.source()


def _has(thing: Any, method: str) -> bool:
    return any(one.getName() == method for one in thing.getClass().getMethods())

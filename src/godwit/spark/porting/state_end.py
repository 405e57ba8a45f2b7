"""Where the state in a DataFrame ends: the query of a flock that it comes from, and the newest batch that it has.

The metadata of a column tell it, because Spark carries them into the plan of every DataFrame that has the state as its
`initialState`. Knows nothing of what is in the column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from godwit.errors import CheckpointMismatch
from godwit.spark.checkpoint.hadoop_folder import Folder
from godwit.spark.porting.spark_checkpoint import SparkCheckpoint

_NAME: Final = "godwit_state_end"


@dataclass(frozen=True, slots=True)
class StateEnd:
    """checkpoint: the checkpointLocation of the query. batch: the newest one that is in the state."""

    operator: str
    checkpoint: str
    batch: int

    @property
    def metadata(self) -> dict[str, Any]:
        """For the column that has the state."""
        return {_NAME: asdict(self)}

    def check(self, source: SparkCheckpoint) -> None:
        """Raise if this checkpointLocation does not end where the state ends: rows would be lost or count twice."""
        folder = source.folder
        if not Folder(folder.spark, self.checkpoint).same_as(folder):
            raise CheckpointMismatch(
                f"the state belongs to the query with the checkpointLocation {self.checkpoint}, not {folder.path}",
                todo=f"Give {self.checkpoint} as the checkpointLocation of the flock's query",
                operator=self.operator,
            )
        committed = source.committed()
        if committed != self.batch:
            raise CheckpointMismatch(
                f"the state is as of batch {self.batch}, and the query has committed batch {committed} since",
                todo="Call godwit.state_for_spark again, after the query was stopped",
                operator=self.operator,
            )


def state_ends(frame: DataFrame) -> list[StateEnd]:
    """Of all state that the plan of a DataFrame reads."""
    jframe: Any = frame._jdf
    texts = {text for node in _nodes(jframe.queryExecution().analyzed()) for text in _texts(node)}
    return [StateEnd(**json.loads(text)) for text in sorted(texts)]


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for at in range(children.size()):
        yield from _nodes(children.apply(at))


def _texts(node: Any) -> Iterator[str]:
    output = node.output()
    for at in range(output.size()):
        metadata = output.apply(at).metadata()
        if metadata.contains(_NAME):
            yield metadata.getMetadata(_NAME).json()

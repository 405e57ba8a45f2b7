"""What the demo computes: a plain PySpark StatefulProcessor, in which nothing knows of Godwit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

OUTPUT: Final = "car string, mean double, n long, due timestamp"


class AverageSpeed(StatefulProcessor):
    """The average speed of a car after each of its reports."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._average = handle.getValueState("average", "mean double, n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        mean, n = self._average.get() or (0.0, 0)
        for row in rows:
            mean, n = (mean * n + row.speed) / (n + 1), n + 1
            yield Row(car=key[0], mean=mean, n=n, due=row.due)
        self._average.update((mean, n))

    def close(self) -> None:
        pass

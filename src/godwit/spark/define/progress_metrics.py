"""What `query.lastProgress` shows of an operator: the rows that it has put out in the batch, as a metric that Spark observes.

Spark counts the rows on their way, at about 15 ns each, and once however often a batch is evaluated. More cannot be shown
there: Spark observes rows, and knows nothing of hosts.
"""

from __future__ import annotations

import threading

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from godwit.runtime.router.route import Route

_lock = threading.Lock()
# Which checkpoint uses the plain name of a metric: Spark refuses a query with two of one name.
_users: dict[str, str] = {}


def observed(output: DataFrame, route: Route) -> DataFrame:
    """The output of an operator, counted."""
    if not output.isStreaming:
        return output
    return output.observe(_metric(route), sf.count(sf.lit(1)).alias("output_rows"))


def _metric(route: Route) -> str:
    name = f"godwit:{route.operator}"
    with _lock:
        first = _users.setdefault(name, route.checkpoint)
    return name if first == route.checkpoint else f"{name} in {route.checkpoint}"

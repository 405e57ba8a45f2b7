"""Godwit: resident keyed state for PySpark Structured Streaming, exactly once and in order.

The public names are loaded when they are first used: a host that has just been started again after a failure should not spend
its first half second on modules that only the driver needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from godwit import errors, windows
    from godwit.control import rules
    from godwit.errors import GodwitError
    from godwit.runtime.processor.native import Processor
    from godwit.runtime.processor.rows import Outputs, Rows, Times
    from godwit.spark.change.migration_handle import Migration
    from godwit.spark.checkpoint.state_view import read_state
    from godwit.spark.flock import Flock
    from godwit.spark.porting.continued_query import continue_spark_query
    from godwit.spark.porting.returned_query import continue_in_spark
    from godwit.spark.porting.spark_state import spark_state
    from godwit.spark.porting.state_for_spark import state_for_spark
    from godwit.spark.realtime.tuning import tune, tuning
    from godwit.spark.results.measures import Measures
    from godwit.spark.results.migration_summary import MigrationProgress, MigrationSummary
    from godwit.spark.results.status import Status

__version__ = "0.1.0"
__all__ = [
    "Flock",
    "GodwitError",
    "Measures",
    "Migration",
    "MigrationProgress",
    "MigrationSummary",
    "Outputs",
    "Processor",
    "Rows",
    "Status",
    "Times",
    "continue_in_spark",
    "continue_spark_query",
    "errors",
    "read_state",
    "rules",
    "spark_state",
    "state_for_spark",
    "tune",
    "tuning",
    "windows",
]

_HOMES = {
    "Flock": "godwit.spark.flock",
    "GodwitError": "godwit.errors",
    "Measures": "godwit.spark.results.measures",
    "Migration": "godwit.spark.change.migration_handle",
    "MigrationProgress": "godwit.spark.results.migration_summary",
    "MigrationSummary": "godwit.spark.results.migration_summary",
    "Outputs": "godwit.runtime.processor.rows",
    "Processor": "godwit.runtime.processor.native",
    "Rows": "godwit.runtime.processor.rows",
    "Status": "godwit.spark.results.status",
    "Times": "godwit.runtime.processor.rows",
    "continue_in_spark": "godwit.spark.porting.returned_query",
    "continue_spark_query": "godwit.spark.porting.continued_query",
    "errors": "godwit.errors",
    "read_state": "godwit.spark.checkpoint.state_view",
    "rules": "godwit.control.rules",
    "spark_state": "godwit.spark.porting.spark_state",
    "state_for_spark": "godwit.spark.porting.state_for_spark",
    "tune": "godwit.spark.realtime.tuning",
    "tuning": "godwit.spark.realtime.tuning",
    "windows": "godwit.windows",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'godwit' has no attribute {name!r}")
    module = import_module(_HOMES[name])
    return module if name in ("errors", "rules", "windows") else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

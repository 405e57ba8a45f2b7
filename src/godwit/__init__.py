"""Godwit: resident keyed state for PySpark Structured Streaming, exactly once and in order."""

from godwit import errors, windows
from godwit.errors import GodwitError
from godwit.runtime.native import Processor
from godwit.runtime.rows import Outputs, Rows, Times
from godwit.spark.flock import Flock

__version__ = "0.1.0"
__all__ = ["Flock", "GodwitError", "Outputs", "Processor", "Rows", "Times", "errors", "windows"]

"""What a user sees of an error in a Spark task: Godwit's own line, not the frames of the Python worker around it.

Spark builds the text of a failed query from the traceback that the worker writes. The worker leaves the traceback out if
PySpark's own setting for that is in its environment. An error that is a bug of Godwit keeps its traceback, for the report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from godwit.errors import Bug, GodwitError
from godwit.runtime.liveness.slot_offers import SlotGivenUp
from godwit.runtime.messages import ReportTaskError
from godwit.transport import line, typed

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"  # set by Spark for spark.sql.execution.pyspark.udf.hideTraceback.enabled
CONNECT_S = 2.0
CALL_S = 5.0


@contextmanager
def plain_errors(controller: str = "", token: str = "") -> Iterator[None]:
    """Around the work of a task. With a controller, the driver learns of the error: `Flock.last_error()` has it.

    The worker ends after the error, so the setting concerns this error alone.
    """
    try:
        yield
    except Bug as error:
        _report(controller, token, error)
        raise
    except GodwitError as error:
        if not isinstance(error, SlotGivenUp):
            _report(controller, token, error)
        os.environ[HIDE_TRACEBACK] = "1"
        raise


def _report(controller: str, token: str, error: GodwitError) -> None:
    if not controller:
        return
    with suppress(GodwitError):  # the driver is gone or busy: Spark has the error all the same
        client = line.connect(controller, token, CONNECT_S)
        try:
            typed.ask(client, ReportTaskError(error), CALL_S)
        finally:
            client.close()


def instead_of_sparks(last_error: Callable[[], GodwitError | None], job: Callable[[], object]) -> None:
    """Run a Spark job of Godwit's own. If an error of Godwit ended one of its tasks, that error is raised, not Spark's."""
    before = last_error()
    try:
        job()
    except Exception:
        error = last_error()
        if error is not None and error is not before:
            raise error from None
        raise

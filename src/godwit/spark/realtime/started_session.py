"""Whether a session has the settings that count only when it starts, and without which rows in real time wait for ever.

Spark answers with a new value for such a setting when it is set later, and goes on with the old one. So what counts is the
configuration with which the session was started.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from godwit.errors import DefinitionError
from godwit.spark.supported_pyspark import check_real_time

BUFFER: Final = "spark.buffer.size"
BUFFER_BYTES_MAX: Final = 256  # a message of one row is longer, so it does not wait in the buffer
PIPELINED: Final = "spark.python.udf.pipelined.enabled"
SET_LATER: Final = ("spark.sql.", "spark.godwit.")  # settings with these names count whenever they are set
_TODO: Final = (
    "Stop the session and start it from godwit.tune(SparkSession.builder, real_time=True); spark-submit and a notebook that "
    "starts the session by itself need the settings of godwit.tuning(real_time=True) in their own configuration"
)
_log: Final = logging.getLogger("godwit.tune")


def check_started_session(spark: SparkSession) -> None:
    """Refuse an operator for the real-time trigger in a session in which its rows would wait for ever."""
    check_real_time()
    found = missing(dict(spark.sparkContext.getConf().getAll()))
    if found:
        raise DefinitionError(
            f"this session was started without settings of the real-time trigger, and rows would wait for ever: "
            f"{'; '.join(found)}",
            todo=_TODO,
        )


def missing(settings: Mapping[str, str]) -> list[str]:
    """What is wrong with the settings of a session for the real-time trigger, setting by setting."""
    found = []
    if settings.get(PIPELINED, "").lower() != "true":
        found.append(f"{PIPELINED} must be true, and is {settings.get(PIPELINED, 'not set')}")
    size = settings.get(BUFFER, "")
    if not size.isdigit() or int(size) > BUFFER_BYTES_MAX:
        found.append(f"{BUFFER} must be at most {BUFFER_BYTES_MAX}, and is {size or 'not set'}")
    return found


def check_not_started(names: list[str], real_time: bool) -> None:
    """Say so if a session runs that was started without these settings: setting them now changes nothing."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        return
    given = context.getConf()
    without = [name for name in names if not name.startswith(SET_LATER) and not given.contains(name)]
    if not without:
        return
    message = f"a session runs already, and it was started without {', '.join(without)}: set now, they have no effect"
    if real_time:
        raise DefinitionError(message, todo=_TODO)
    _log.warning("%s", message)

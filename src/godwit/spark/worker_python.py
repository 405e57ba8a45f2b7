"""Whether Spark's Python workers run an interpreter that has Godwit: asked before hosts are started.

PySpark takes the `python3` of the path unless PYSPARK_PYTHON names another one, also when the program itself runs in an
environment that is not activated, as notebook kernels often do. Hosts would then end at once, with pages of errors of Spark. On
a cluster the executors have environments of their own, which the driver cannot see: there the hosts' own error has to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark import SparkContext, SparkFiles

from godwit.errors import DefinitionError

START_TIMEOUT_S = 30.0
_ASK = "import godwit.errors"  # which a mere folder named godwit in the working directory does not have
_TODO = (
    "Start the program, or the kernel of the notebook, anew, and before the session is made run: import os, sys; "
    'os.environ["PYSPARK_PYTHON"] = sys.executable (godwit.tune does that, too). Or start it in an activated environment'
)


def check_worker_python(context: SparkContext) -> None:
    """Refuse a local session whose workers cannot import Godwit."""
    master = str(context.master)
    if master == "local" or master.startswith("local["):
        root = Path(SparkFiles.getRootDirectory())
        check_interpreter(context.pythonExec, [str(root / name) for name in context._python_includes or ()])


def check_interpreter(command: str, added: Sequence[str] = ()) -> None:
    """`added`: files and folders that the session puts on the workers' path."""
    interpreter = shutil.which(command)
    if interpreter is None:
        raise DefinitionError(f"Spark's Python workers are to run {command!r}, which does not exist", todo=_TODO)
    if Path(interpreter).absolute().parent == Path(sys.executable).absolute().parent:
        return  # the same environment: no need to start Python
    if not _has_godwit(interpreter, added):
        raise DefinitionError(f"Spark's Python workers run {interpreter}, in which Godwit is not installed", todo=_TODO)


def _has_godwit(python: str, added: Sequence[str]) -> bool:
    path = [*added, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | ({"PYTHONPATH": os.pathsep.join(path)} if path else {})
    try:
        subprocess.run([python, "-c", _ASK], env=environment, capture_output=True, timeout=START_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True

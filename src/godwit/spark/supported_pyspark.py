"""Which versions of PySpark this package works with: refused before a module that another version lacks is imported."""

from __future__ import annotations

from typing import Final

import pyspark

from godwit.errors import DefinitionError

SUPPORTED: Final = ("4.2", "4.3")
REAL_TIME_FROM: Final = (4, 3)


def check_pyspark(version: str = pyspark.__version__) -> None:
    if ".".join(version.split(".")[:2]) not in SUPPORTED:
        raise DefinitionError(
            f"PySpark {version} is installed, and this version of Godwit works with PySpark {' and '.join(SUPPORTED)}",
            todo=f"Install one of these, for instance: pip install 'pyspark=={SUPPORTED[-1]}.*'",
        )


def check_real_time(version: str = pyspark.__version__) -> None:
    """Earlier versions read what comes back from Python only between two inputs, so rows would wait for the rows after them."""
    if not has_real_time(version):
        raise DefinitionError(
            f"PySpark {version} is installed, and with it rows would wait for the rows after them in real time",
            todo=f"Install PySpark {'.'.join(map(str, REAL_TIME_FROM))}, or use a processingTime or availableNow trigger",
        )


def has_real_time(version: str = pyspark.__version__) -> bool:
    return tuple(int(part) for part in version.split(".")[:2]) >= REAL_TIME_FROM

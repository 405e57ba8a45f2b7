"""Which versions of PySpark this package works with: refused before a module that another version lacks is imported."""

from __future__ import annotations

from typing import Final

import pyspark

from godwit.errors import DefinitionError

SUPPORTED: Final = ("4.2", "4.3")


def check_pyspark(version: str = pyspark.__version__) -> None:
    if ".".join(version.split(".")[:2]) not in SUPPORTED:
        raise DefinitionError(
            f"PySpark {version} is installed, and this version of Godwit works with PySpark {' and '.join(SUPPORTED)}",
            todo=f"Install one of these, for instance: pip install 'pyspark=={SUPPORTED[-1]}.*'",
        )

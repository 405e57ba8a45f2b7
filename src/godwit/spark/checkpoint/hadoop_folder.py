"""A directory in a file system of Hadoop: a checkpointLocation of Spark need not be a directory of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from godwit.errors import CheckpointMismatch, CheckpointUnusable

Method = TypeVar("Method", bound=Callable[..., Any])


def _explained(method: Method) -> Method:
    """An error of the file system names the directory, and has no stack of the JVM."""

    @wraps(method)
    def run(folder: Folder, *args: Any) -> Any:
        try:
            return method(folder, *args)
        except (Py4JJavaError, CapturedException) as error:
            raise CheckpointUnusable(
                f"the directory {folder.path!r} cannot be used: {_reason(error)}",
                todo="Give a directory on a file system that Spark knows, which this user may read and write",
            ) from None

    return run  # type: ignore[return-value]


def _reason(error: Py4JJavaError | CapturedException) -> str:
    """Java's own message, or the name of the Java error if it has none."""
    if isinstance(error, CapturedException):
        return str(error).splitlines()[0]
    java: Any = error.java_exception
    return str(java.getMessage() or java.getClass().getSimpleName()).splitlines()[0]


class Folder:
    """A directory in a file system of Hadoop. All that fails there is a `CheckpointUnusable`."""

    @_explained
    def __init__(self, spark: SparkSession, path: str | os.PathLike[str]) -> None:
        self.spark = spark
        self.path = os.fspath(path)
        self._jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._conf = session.sessionState().newHadoopConf()
        self._files = self._at("").getFileSystem(self._conf)

    def _at(self, name: str) -> Any:
        path = self._jvm.org.apache.hadoop.fs.Path(self.path)
        return self._jvm.org.apache.hadoop.fs.Path(path, name) if name else path

    def same_as(self, other: Folder) -> bool:
        """Whether both are one directory, however their paths are written."""
        one, two = (str(folder._files.makeQualified(folder._at("")).toString()) for folder in (self, other))
        return one == two

    @_explained
    def exists(self, name: str = "") -> bool:
        return bool(self._files.exists(self._at(name)))

    @_explained
    def names(self, name: str = "") -> list[str]:
        """The names of the files in a directory; empty if there is no such directory."""
        if not self.exists(name):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(self._at(name))]

    def numbers(self, name: str) -> list[int]:
        """The files in a directory whose names are numbers, ascending: Spark's logs have a file for each batch."""
        return sorted(int(each) for each in self.names(name) if each.isdigit())

    @_explained
    def read(self, name: str) -> str:
        stream = self._files.open(self._at(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    @_explained
    def write(self, name: str, text: str) -> None:
        stream = self._files.create(self._at(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    @_explained
    def copy_to(self, name: str, target: Folder, target_name: str) -> None:
        """Copy a file or a directory."""
        util = self._jvm.org.apache.hadoop.fs.FileUtil
        util.copy(self._files, self._at(name), target._files, target._at(target_name), False, self._conf)

    @_explained
    def make(self, name: str) -> None:
        self._files.mkdirs(self._at(name))

    @_explained
    def rename(self, target: Folder) -> None:
        if not self._files.rename(self._at(""), target._at("")):
            raise CheckpointMismatch(
                f"{target.path} cannot be written", todo="Give a directory that does not exist yet"
            )

    @_explained
    def delete(self, name: str = "") -> None:
        self._files.delete(self._at(name), True)

"""Directories that Spark cannot use: the error names the directory and the reason, without a stack of the JVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from godwit.errors import CheckpointUnusable
from godwit.spark.checkpoint.hadoop_folder import Folder


def assert_plain(error: CheckpointUnusable, *words: str) -> None:
    assert all(word in str(error) for word in words), error
    assert "\tat " not in str(error)
    assert len(str(error).splitlines()) == 1


def test_a_directory_below_a_file_cannot_be_written(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = Folder(spark, tmp_path / "file" / "new")
    with pytest.raises(CheckpointUnusable) as caught:
        folder.write("metadata", "{}")
    assert_plain(caught.value, "file/new' cannot be used: ", "Give a directory")


@pytest.mark.parametrize("path", ["nosuch://bucket/new", ""])
def test_a_path_that_is_of_no_file_system(spark: SparkSession, path: str) -> None:
    with pytest.raises(CheckpointUnusable) as caught:
        Folder(spark, path)
    assert_plain(caught.value, f"the directory {path!r} cannot be used: ")


def test_a_file_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnusable) as caught:
        Folder(spark, tmp_path).read("metadata")
    assert_plain(caught.value, "metadata", "does not exist")

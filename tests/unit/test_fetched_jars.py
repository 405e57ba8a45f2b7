"""Jars are fetched once, whoever asks for them; a download that breaks off is tried again."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from godwit.errors import DefinitionError
from godwit.testing import jars

PACKAGE = "org.example:birds:1.0"
RESOLVER = """#!/bin/sh
# Like Spark's own: $4 is spark.jars.ivy=DIRECTORY. The first {broken} attempts break off.
home=${{4#spark.jars.ivy=}}
echo attempt >> "$home/attempts"
if [ "$(wc -l < "$home/attempts")" -le {broken} ]; then
  echo "RuntimeException: [{failure}: birds.jar]" >&2
  exit 1
fi
mkdir -p "$home/jars" && touch "$home/jars/birds.jar"
"""


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of spark-submit; its text says how it behaves."""
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    monkeypatch.setattr(jars, "SPARK_HOME", tmp_path / "spark")
    monkeypatch.setenv("GODWIT_CACHE", str(tmp_path / "cache"))
    return program


def behaves(program: Path, broken: int, failure: str = "download failed") -> None:
    program.write_text(RESOLVER.format(broken=broken, failure=failure))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def attempts() -> int:
    return len((Path(os.environ["GODWIT_CACHE"]) / "org.example-birds-1.0" / "attempts").read_text().split())


def test_jars_are_fetched_once_for_all_who_ask_at_the_same_time(resolver: Path) -> None:
    behaves(resolver, broken=0)
    found: list[list[Path]] = []
    asking = [threading.Thread(target=lambda: found.append(jars.fetched([PACKAGE]))) for _ in range(6)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    assert [[jar.name for jar in each] for each in found] == [["birds.jar"]] * 6
    assert attempts() == 1


def test_a_download_that_breaks_off_is_tried_again(resolver: Path) -> None:
    behaves(resolver, broken=jars.ATTEMPTS_MAX - 1)
    assert [jar.name for jar in jars.fetched([PACKAGE])] == ["birds.jar"]


def test_a_download_that_always_breaks_off_is_an_error_with_the_resolvers_words(resolver: Path) -> None:
    behaves(resolver, broken=jars.ATTEMPTS_MAX)
    with pytest.raises(DefinitionError, match=r"download failed: birds\.jar"):
        jars.fetched([PACKAGE])
    assert attempts() == jars.ATTEMPTS_MAX


def test_a_package_that_does_not_exist_is_not_tried_again(resolver: Path) -> None:
    behaves(resolver, broken=1, failure="unresolved dependency")
    with pytest.raises(DefinitionError, match="unresolved dependency"):
        jars.fetched([PACKAGE])
    assert attempts() == 1

"""Every example runs, with the session the tests share, and shows something; test_kafka_examples.py has those with Kafka."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted(
    path for path in (Path(__file__).parents[2] / "examples").glob("*.py") if not path.stem.startswith("kafka_")
)


@pytest.mark.spark
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(path: Path, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location(f"examples.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(spark, str(tmp_path))
    shown = capsys.readouterr().out
    assert shown.count("|C") >= 3, shown

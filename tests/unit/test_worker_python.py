"""Which interpreters of Spark's workers are refused: asked of real interpreters."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest

from godwit.errors import DefinitionError
from godwit.spark.worker_python import check_interpreter


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The Python of an environment without packages."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    venv.create(tmp_path / "bare", symlinks=True)
    return str(tmp_path / "bare" / "bin" / "python")


def test_the_interpreter_of_the_program_is_fine() -> None:
    check_interpreter(sys.executable)


def test_an_interpreter_without_godwit_is_refused_with_the_line_that_helps(bare: str) -> None:
    with pytest.raises(DefinitionError, match="Godwit is not installed") as caught:
        check_interpreter(bare)
    assert bare in str(caught.value)
    assert 'os.environ["PYSPARK_PYTHON"] = sys.executable' in caught.value.todo


def test_a_folder_named_godwit_beside_the_program_is_not_the_package(bare: str, tmp_path: Path) -> None:
    (tmp_path / "godwit").mkdir()
    with pytest.raises(DefinitionError, match="Godwit is not installed"):
        check_interpreter(bare)


def test_a_package_that_the_session_gives_to_its_workers_counts(bare: str) -> None:
    check_interpreter(bare, [str(Path(__file__).parents[2] / "src")])


def test_an_interpreter_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DefinitionError, match="'/no/python', which does not exist"):
        check_interpreter("/no/python")

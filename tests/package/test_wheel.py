"""The package as a user installs it: a wheel, in an empty environment, with whatever versions its metadata lets in."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.test_docs import snippets

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """In an environment that knows nothing of this checkout."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))}
    shown = subprocess.run(
        list(map(str, command)), cwd=cwd, env=given | environment, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stdout[-2_000:] + shown.stderr[-4_000:]
    return shown.stdout


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_the_readme_example_runs_in_an_empty_environment(tmp_path: Path) -> None:
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        tmp_path / "dist",
        ROOT,
        cwd=tmp_path,
    )
    (wheel,) = (tmp_path / "dist").glob("godwit-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    example = snippets("README.md")[0].replace("/tmp/godwit", str(tmp_path / "state"))
    (tmp_path / "example.py").write_text(example)
    shown = run(python, "example.py", cwd=tmp_path, JAVA_HOME=os.environ.get("JAVA_HOME", ""))
    assert "Batch: 1" in shown
    assert run(python.with_name("godwit"), "--help", cwd=tmp_path)

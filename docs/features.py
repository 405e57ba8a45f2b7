"""The rows of compatibility.md: what tests say about themselves with `@pytest.mark.feature(area, what, spark=, godwit=)`.

A row names the test that shows it. Without `spark` and `godwit` the test shows that both do the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SAME = "the same"


@dataclass(frozen=True, slots=True)
class Feature:
    area: str
    what: str
    spark: str
    godwit: str
    test: str


def features() -> list[Feature]:
    """All rows, in the order of files and tests."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [feature for file in files for feature in _in_file(file)]


def _in_file(file: Path) -> Iterator[Feature]:
    text = file.read_text()
    if "mark.feature" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            test = f"{file.relative_to(ROOT)}::{node.name}"
            yield from (_feature(mark, test) for mark in node.decorator_list if _is_feature(mark))


def _is_feature(mark: ast.expr) -> bool:
    return isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.feature"


def _feature(mark: ast.expr, test: str) -> Feature:
    assert isinstance(mark, ast.Call), "a mark with arguments"
    area, what = (ast.literal_eval(each) for each in mark.args)
    given = {each.arg: ast.literal_eval(each.value) for each in mark.keywords}
    return Feature(area, what, given.get("spark", "yes"), given.get("godwit", SAME), test)


def areas() -> dict[str, list[Feature]]:
    by_area: dict[str, list[Feature]] = {}
    for feature in features():
        by_area.setdefault(feature.area, []).append(feature)
    return by_area

"""What the docs say is so: figures come from raw results, snippets are valid, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import report

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "design").glob("*.md")]
)


def test_the_figures_in_the_docs_are_the_ones_last_measured() -> None:
    assert (ROOT / "docs/benchmarks.md").read_text() == report.page()
    assert (ROOT / "README.md").read_text() == report.readme()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_snippets_compile(page: Path) -> None:
    for number, snippet in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
        compile(snippet, f"{page.name}[{number}]", "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_readme_example_gives_what_it_promises() -> None:
    """The processor of the README, run by the tester."""
    from godwit.testing import Tester

    snippet = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    definitions = snippet.split("spark = ")[0]
    names: dict[str, type] = {}
    exec(compile(definitions, "README.md", "exec"), names)
    tester = Tester(names["AverageSpeed"](), "car string, speed double", "car", "car string, mean double, n long")
    rows = [{"car": "a", "speed": 40.0}, {"car": "b", "speed": 10.0}, {"car": "a", "speed": 60.0}]
    assert {"car": "a", "mean": 50.0, "n": 2} in tester.process(rows)


@pytest.mark.parametrize("word", ["lane", "chunk", "ledger", "generation", "epoch", "group", "instance", "router"])
def test_the_words_of_the_design_are_in_the_glossary(word: str) -> None:
    assert re.search(rf"^\| {word} \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)

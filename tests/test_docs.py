"""What the docs say is so: figures come from raw results, tables from code, snippets run, links lead somewhere."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import godwit
from benchmarks.report import docs as report
from docs import tables
from docs.features import areas
from godwit import errors
from godwit.control import rule_checks, rules
from godwit.control.load_measures import METRICS
from godwit.migration import PROTOCOLS
from godwit.spark.change.move_options import MoveOptions
from godwit.spark.checkpoint.history import History
from tests.sim.orders import ORDERS, SKEWS, compare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "design").glob("*.md")]
)


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_figures_in_the_docs_are_the_ones_last_measured() -> None:
    assert (ROOT / "docs/benchmarks.md").read_text() == report.page()
    assert (ROOT / "README.md").read_text() == report.readme()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_snippets_compile(page: Path) -> None:
    for number, snippet in enumerate(snippets(str(page.relative_to(ROOT)))):
        compile(snippet, f"{page.name}[{number}]", "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if not target.startswith("http"):
            found = page.parent / target if target else page
            assert found.exists(), target
            assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


def test_pages_that_the_code_names_exist() -> None:
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    named = {page for source in sources for page in re.findall(r"\bdocs/[\w-]+\.(?:md|html)", source)}
    assert named
    assert {page for page in named if not (ROOT / page).exists()} == set()


def test_every_logger_is_in_the_guide() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "src/godwit/spark").rglob("*.py"))
    logging = (ROOT / "docs/guide.md").read_text().split("\n## Logging\n")[1].split("\n## ")[0]
    described = set(re.findall(r"^\| `(godwit\.\w+)` \|", logging, re.MULTILINE))
    assert described == set(re.findall(r'getLogger\("(godwit\.\w+)"\)', sources))


def anchors(page: Path) -> list[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_readme_example_gives_what_it_promises() -> None:
    """The processor of the README, run by the tester."""
    from godwit.testing import Tester

    definitions = snippets("README.md")[0].split("spark = ")[0]
    names: dict[str, type] = {}
    exec(compile(definitions, "README.md", "exec"), names)
    tester = Tester(names["AverageSpeed"](), "car string, speed double", "car", "car string, mean double, n long")
    rows = [{"car": "a", "speed": 40.0}, {"car": "b", "speed": 10.0}, {"car": "a", "speed": 60.0}]
    assert {"car": "a", "mean": 50.0, "n": 2} in tester.process(rows)


@pytest.mark.spark
def test_the_readme_example_runs_as_it_stands(tmp_path: Path) -> None:
    """In a directory of its own, and for as long as three batches take here."""
    example = snippets("README.md")[0].replace("/tmp/godwit", str(tmp_path))
    three_batches = "while (query.lastProgress or {'batchId': 0})['batchId'] < 3: query.awaitTermination(0.2)"
    example = example.replace("query.awaitTermination(15)", three_batches)
    unset = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")  # as in an environment that was not activated
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", example]
    shown = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "[Stage" not in shown.stderr, "no progress bar of hosts, which do not end"
    assert "Batch: 1" in shown.stdout
    assert set(re.findall(r"(C\d)\|host-\d\|", shown.stdout)) == {"C0", "C1", "C2", "C3", "C4"}


WORDS = (
    "lane chunk ledger generation epoch group instance router unit step origin target gate refusal stand routing_table "
    "rule warm demand block merge"
)


@pytest.mark.parametrize("word", WORDS.split())
def test_the_words_of_the_design_are_in_the_glossary(word: str) -> None:
    shown = word.replace("_", " ")
    assert re.search(rf"^\| {shown} \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)


# -- guarantees ------------------------------------------------------------------------------------------------------

GUARANTEES = (ROOT / "docs/guarantees.md").read_text()
NOTE = re.compile(r"\[\^([\w-]+)\]")


def promises() -> list[str]:
    """The sentences of the page, and the rows of its tables."""
    text = re.sub(r"^(#.*|\[\^.*|\|[\s|-]*\|)$", "", GUARANTEES, flags=re.MULTILINE)
    text = re.sub(r"^\| (what happens|crash) \|.*$", "", text, flags=re.MULTILINE)
    blocks = [block for part in text.split("\n\n") for block in re.split(r"\n(?=\||- )", part)]
    sentences = [one for block in blocks for one in re.split(r"(?<=\.|\])\s+(?=[A-Z`*])", " ".join(block.split()))]
    return [sentence for sentence in sentences if sentence]


def test_every_promise_of_the_guarantees_names_its_tests_or_is_a_limit() -> None:
    notes = dict(re.findall(r"^\[\^([\w-]+)\]: (.*)$", GUARANTEES, re.MULTILINE))
    without = [sentence for sentence in promises() if not NOTE.search(sentence)]
    assert all(LEADS_ON.search(sentence) for sentence in without), without
    assert {note for sentence in promises() for note in NOTE.findall(sentence)} == notes.keys()
    for tests in (tests for note, tests in notes.items() if note != "limit"):
        for test in tests.split(", "):
            file, _, name = test.partition("::")
            assert re.search(rf"^(def {name}\(|{name} = )", (ROOT / file).read_text(), re.MULTILINE), test


# What a sentence without a note may be: one that the next sentence, which has a note, completes.
LEADS_ON = re.compile(
    r"rows come in any order\.$|belong together\.$|: nothing\.$|drops its copy\.$|target is back\.$"
    r"|^\*\*What it rests on\.\*\*$|^Seven things hold .* while the query runs\.$"
)


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_codes_of_errors_are_those_of_the_code(page: Path) -> None:
    assert set(re.findall(r"GODWIT-[A-Z-]*[A-Z]", page.read_text())) <= set(errors.CODES)


def test_every_code_is_in_the_guide() -> None:
    """With the kind of error that it is."""
    chapter = (ROOT / "docs/guide.md").read_text().split("## Errors")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)`.*?\|(.*)\|$", chapter, re.MULTILINE)
    told = {f"GODWIT-{code}": kind for kind, codes in rows for code in re.findall(r"`([A-Z-]+)`", codes)}
    assert told.keys() == errors.CODES.keys() - {errors.GodwitError.code}
    assert all(issubclass(errors.CODES[code], getattr(errors, kind)) for code, kind in told.items())


# -- reconfiguration -------------------------------------------------------------------------------------------------


def test_the_table_of_the_packages_is_that_of_the_code() -> None:
    assert tables.INTERNALS.read_text() == tables.internals(), "python -m docs.tables draws it anew"
    source = ROOT / "src/godwit"
    packages = {str(file.parent.relative_to(source)) for file in source.rglob("__init__.py")}
    told = {room for room in tables.ROOMS if "/" in room}
    assert told == {package for package in packages if package.startswith(("runtime/", "spark/"))}


def test_internals_name_files_that_are_there() -> None:
    """A file is named with its path, or by its name alone if its folder has been named shortly before."""
    source = ROOT / "src/godwit"
    names = {file.name for file in source.rglob("*.py")}
    for named in re.findall(r"`([a-z_/]+\.py)`", tables.INTERNALS.read_text()):
        assert (source / named).exists() or (ROOT / named).exists() if "/" in named else named in names, named


def test_every_row_of_spark_beside_godwit_comes_from_a_test() -> None:
    assert tables.COMPATIBILITY.read_text() == tables.compatibility(), "python -m docs.tables draws them anew"
    assert sum(map(len, areas().values())) > 10


def test_the_settings_of_the_tuning_page_are_those_of_the_code() -> None:
    assert tables.TUNING.read_text() == tables.tuning(), "python -m docs.tables draws them anew"
    assert all(f"| `{each.name}` | `{each.value}` |" in tables.tuning() for each in godwit.tuning(real_time=True))


def test_every_change_of_an_operator_in_the_guide_names_its_tests() -> None:
    section = (ROOT / "docs" / "guide.md").read_text().split("## Defining an operator again")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        tests = re.findall(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)", row)
        assert tests, row
        for name, file in tests:
            assert f"def {name}(" in (ROOT / file).read_text(), name


def test_the_tables_of_the_protocols_are_those_of_the_code() -> None:
    assert tables.PAGE.read_text() == tables.page(), "python -m docs.tables draws them anew"
    drawn = {found["name"] for found in tables.BLOCK.finditer(tables.PAGE.read_text())}
    assert drawn == tables.blocks().keys(), "a table is missing on the page"


def test_every_protocol_has_a_chapter_and_a_line_in_the_guide() -> None:
    guide = (ROOT / "docs/reconfiguration.md").read_text()
    for name in (*PROTOCOLS, "restart"):
        assert f"\n## {name}\n" in tables.PAGE.read_text()
        assert f"\n| `{name}` |" in guide


def test_the_figures_of_the_orders_are_those_of_the_simulation() -> None:
    found = {traffic: compare(skew) for traffic, skew in SKEWS.items()}
    for order in ORDERS:
        cells = [f"{told[order].mean_ms:.1f} / {told[order].p99_ms:.1f}" for told in found.values()]
        assert f"| {order} | {' | '.join(cells)} |" in (ROOT / "design/006-order-of-push.md").read_text()


@pytest.mark.parametrize("option", MoveOptions.__annotations__)
def test_every_option_is_in_the_guide(option: str) -> None:
    options = (ROOT / "docs/reconfiguration.md").read_text().split("## Options")[1].split("\n## ")[0]
    assert f"`{option}`" in options


@pytest.mark.timeout(900)
def test_the_guide_to_reconfiguration_runs(spark: SparkSession, tmp_path: Path) -> None:
    """All snippets, one after another, as a reader would type them in."""
    names: dict[str, Any] = {"__name__": "__main__", "spark": spark, "directory": str(tmp_path)}
    try:
        for number, snippet in enumerate(snippets("docs/reconfiguration.md")):
            exec(compile(snippet, f"reconfiguration.md[{number}]", "exec"), names)
        assert names["query"].exception() is None
        assert sum(batch.numInputRows for batch in names["query"].recentProgress) > 0
        ended = [line["outcome"] for line in History(tmp_path / "godwit").lines() if line["event"] == "ended"]
        assert ended.count("done") >= 9
        assert set(ended) <= {"done", "aborted"}
    finally:
        if "flock" in names:
            names["flock"].close()


# -- elasticity ------------------------------------------------------------------------------------------------------


ELASTICITY = (ROOT / "docs/elasticity.md").read_text()


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_in_the_guide_to_elasticity(name: str) -> None:
    assert f"`{name}`" in ELASTICITY.split("## Rules")[0]


def test_every_field_and_every_ready_rule_is_in_the_guide_to_elasticity() -> None:
    chapter = ELASTICITY.split("## Rules")[1].split("## Following")[0]
    for name in (*(field.name for field in fields(rules.Rule) if field.name != "name"), *rules.ACTIONS):
        assert f"`{name}`" in chapter or f'`"{name}"`' in chapter, name
    for made in rules.READY.values():
        assert f"`rules.{made.__name__}(" in chapter


def test_the_rules_file_of_the_guide_is_one() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", ELASTICITY, re.DOTALL)
    assert [rule.name for rule in rule_checks.checked(rules.parsed(text), 1, 4, ["count"])] == ["bottleneck", "slow"]


@pytest.mark.timeout(300)
@pytest.mark.long
def test_the_guide_to_elasticity_runs(spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "spark": spark, "directory": str(tmp_path)}
    try:
        for number, snippet in enumerate(snippets("docs/elasticity.md")):
            exec(compile(snippet, f"elasticity.md[{number}]", "exec"), names)
        decided = [line for line in History(tmp_path / "godwit").lines() if line["event"] == "decided"]
        assert [line["dry_run"] for line in decided] == sorted((line["dry_run"] for line in decided), reverse=True)
        assert [line["hosts"] for line in decided if not line["dry_run"] and line["action"] == "scale"] == [2]
    finally:
        if "flock" in names:
            names["flock"].close()


@pytest.fixture
def own_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The protocol of the page as a file that this process and its hosts can import."""
    (tmp_path / "shadow.py").write_text(snippets("docs/protocols.md")[0])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("shadow")
    yield tmp_path
    del PROTOCOLS["shadow"]
    del sys.modules["shadow"]


@pytest.mark.usefixtures("own_protocol")
def test_a_protocol_of_ones_own_holds_in_the_simulator() -> None:
    names: dict[str, Any] = {}
    exec(compile(snippets("docs/protocols.md")[1], "protocols.md[1]", "exec"), names)
    assert names["outcomes"]["done"] > 10
    assert names["outcomes"]["stayed"] > 0


MODULE = """
import godwit
import pyarrow as pa
import shadow

class Count(godwit.Processor):
    state = {"n": pa.int64()}
    output_schema = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("n", pa.int64())])

    def process(self, rows, state, times):
        count = state["n"][rows.codes] + rows.rank + 1
        state["n"] += rows.counts
        return self.emit(rows, count=count)
"""


def test_hosts_know_a_protocol_that_the_module_of_the_processor_imports(own_protocol: Path) -> None:
    from tests.integration.nest import Nest
    from tests.integration.test_migration import Checked, chunks, ended, groups_of, migrate

    (own_protocol / "counting.py").write_text(MODULE)
    counting = importlib.import_module("counting")
    nest = Nest(own_protocol / "godwit", hosts=2, processor=counting.Count()).start_all()
    try:
        seen = Checked()
        seen.take(nest.run(0, "0", chunks(0, 4)))
        moving = groups_of(nest, "host-0")[::2]
        migrate(nest, "host-0", "host-1", "shadow", [{"groups": moving, "keys": []}])
        seen.take(nest.run(1, "0", chunks(1, 4)))
        assert ended(nest, "host-0").done == 1
        seen.take(nest.run(2, "0", chunks(2, 4)))
        assert set(moving) <= set(groups_of(nest, "host-1"))
        assert nest.state(2) == seen.counts
    finally:
        nest.close()
        del sys.modules["counting"]

"""The shape of `src/godwit`, read from imports and names: layers, purity, the place of pyspark, plain names.

Each rule is a function from one file to the breaches it finds, so that it can be tried on small made-up files
as well as run on the real ones.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "godwit"

# Lowest first. A unit (a top-level module or package) may import units of lower rows only: units of one row
# do not know each other. "godwit" is the package's own __init__, the public API.
LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "errors",
        "model",
        "control migration",
        "ports",
        "state transport",
        "runtime",
        "windows workload",
        "spark",
        "api testing",
        "godwit",
        "demo",
        "cli",
    )
)
RANK = {unit: rank for rank, row in enumerate(LAYERS) for unit in row}

# Rooms of a package, lowest first: a room imports rooms of lower rows only. The package's own modules may import all of them.
ROOMS: dict[str, tuple[frozenset[str], ...]] = {
    unit: tuple(frozenset(row.split()) for row in rows)
    for unit, rows in {
        "runtime": (
            "liveness pacing processor",
            "chunk load",
            "durable",
            "instance",
            "router",
            "handover reading",
            "backup",
            "takeover",
            "host",
        ),
        "spark": ("checkpoint pyspark_api realtime results", "hosts porting", "define", "change"),
    }.items()
}
ROOM_MODULES_MAX = 12

STDLIB_ONLY = {"control", "errors", "migration", "model"}
PURE = {"control", "errors", "migration", "model", "workload"}
# Clocks, chance, threads, processes and files: what a pure unit gets as an argument instead.
WORLD = set(
    "_thread asyncio concurrent fcntl io mmap multiprocessing os queue random sched secrets select selectors"
    " shutil signal socket socketserver ssl subprocess tempfile threading time uuid".split()
)
SPARK_UNITS = {"spark", "testing", "api", "godwit", "demo", "cli"}

EMPTY_NAMES = set("util utils helper helpers common manager managers misc".split())
PAPERS = set("falcon meces megaphone seep rhino drrs trisk flux streamcloud turbine pam ds2".split())
WORKLOADS = set("nexmark riotbench ysb linearroad traffic toll keycount".split())
WORKLOAD_UNITS = {"workload", "demo"}


@dataclass(frozen=True)
class Source:
    """One file of the package: its path from src/godwit on, and the dotted names of all modules there are."""

    path: str
    text: str
    modules: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def unit(self) -> str:
        first = Path(self.path).parts[0].removesuffix(".py")
        return "godwit" if first == "__init__" else first

    @property
    def package(self) -> list[str]:
        return ["godwit", *Path(self.path).parts[:-1]]

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)


def imported(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import in the file, also inside functions and `if TYPE_CHECKING`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = source.package[: len(source.package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                longer = f"{module}.{alias.name}"
                yield node.lineno, longer if longer in source.modules else module


def unit_of(module: str) -> str | None:
    """The unit of this package that a dotted name belongs to; None for other packages."""
    parts = module.split(".")
    if parts[0] != "godwit":
        return None
    return parts[1] if len(parts) > 1 else "godwit"


def upward_imports(source: Source) -> Iterator[str]:
    if source.unit not in RANK:
        yield f"{source.path}: `{source.unit}` is in no layer: add it to LAYERS"
        return
    for line, module in imported(source):
        unit = unit_of(module)
        if unit is None or unit == source.unit:
            continue
        if unit not in RANK:
            yield f"{source.path}:{line}: imports {module}, which is in no layer"
        elif RANK[unit] >= RANK[source.unit]:
            beside = "beside" if RANK[unit] == RANK[source.unit] else "above"
            yield f"{source.path}:{line}: `{source.unit}` imports {module}, {beside} it"


def room_of(module: str) -> tuple[str, str] | None:
    """The package and the room in it that a dotted name belongs to; None for modules outside of rooms."""
    parts = module.split(".")
    if len(parts) < 4 and module not in {f"godwit.{unit}.{room}" for unit, room in RANK_OF_ROOM}:
        return None
    return (parts[1], parts[2]) if parts[0] == "godwit" and parts[1] in ROOMS else None


RANK_OF_ROOM = {(unit, room): rank for unit, rows in ROOMS.items() for rank, row in enumerate(rows) for room in row}


def imports_of_higher_rooms(source: Source) -> Iterator[str]:
    mine = room_of(module_name(Path(source.path)))
    if mine is None:
        return
    if mine not in RANK_OF_ROOM:
        yield f"{source.path}: the room `{mine[1]}` is in no row: add it to ROOMS"
        return
    for line, module in imported(source):
        room = room_of(module)
        if room is None or room == mine or room[0] != mine[0]:
            continue
        if room not in RANK_OF_ROOM or RANK_OF_ROOM[room] >= RANK_OF_ROOM[mine]:
            yield f"{source.path}:{line}: `{mine[1]}` imports {module}, which is not in a lower room"


def impure_imports(source: Source) -> Iterator[str]:
    for line, module in imported(source):
        top = module.split(".")[0]
        if source.unit in PURE and top in WORLD:
            yield f"{source.path}:{line}: `{source.unit}` is pure but imports {module}"
        elif source.unit in STDLIB_ONLY and top not in {"godwit", "__future__"} | sys.stdlib_module_names:
            yield f"{source.path}:{line}: `{source.unit}` imports {module}, not of the standard library"


def spark_outside_its_layer(source: Source) -> Iterator[str]:
    for line, module in imported(source):
        if module.split(".")[0] in {"pyspark", "py4j"} and source.unit not in SPARK_UNITS:
            yield f"{source.path}:{line}: `{source.unit}` imports {module}"


def names_that_say_nothing(source: Source) -> Iterator[str]:
    for part in Path(source.path).with_suffix("").parts:
        for word in EMPTY_NAMES & words(part):
            yield f"{source.path}: `{word}` does not say what the file is about"


def missing_docstring(source: Source) -> Iterator[str]:
    if source.text.strip() and not ast.get_docstring(source.tree):
        yield f"{source.path}: no module docstring"


def borrowed_names(source: Source) -> Iterator[str]:
    forbidden = PAPERS if source.unit in WORKLOAD_UNITS else PAPERS | WORKLOADS
    for line, name in [(1, source.path.removesuffix(".py")), *spoken(source.tree)]:
        for word in sorted(forbidden & words(name)):
            yield f"{source.path}:{line}: `{word}` names a paper or a workload"


def words(name: str) -> set[str]:
    """The words of an identifier or a text, in small letters: `fooBar_baz2 x` has foo, bar, baz2 and x."""
    parts = re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*", name)
    together = re.findall(r"[A-Za-z]+\d*", name)
    return {part.lower() for part in (*parts, *together)}


def spoken(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every identifier and every text of the file, with its line; docstrings and comments left out."""
    quoted = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) in quoted:
            continue
        for attribute in ("id", "attr", "arg", "name", "asname", "module", "rest", "value"):
            name = getattr(node, attribute, None)
            if isinstance(name, str):
                yield getattr(node, "lineno", 1), name


RULES: tuple[Callable[[Source], Iterator[str]], ...] = (
    upward_imports,
    imports_of_higher_rooms,
    impure_imports,
    spark_outside_its_layer,
    names_that_say_nothing,
    missing_docstring,
    borrowed_names,
)


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(["godwit", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def package_sources() -> list[Source]:
    paths = [path.relative_to(ROOT) for path in sorted(ROOT.rglob("*.py"))]
    modules = frozenset(module_name(path) for path in paths)
    return [Source(str(path), (ROOT / path).read_text(encoding="utf-8"), modules) for path in paths]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_keeps(rule: Callable[[Source], Iterator[str]]) -> None:
    sources = package_sources()
    assert sources, f"nothing to check under {ROOT}"
    breaches = [breach for source in sources for breach in rule(source)]
    assert not breaches, "\n" + "\n".join(breaches)


def test_a_module_name_means_one_thing() -> None:
    stems: dict[str, list[str]] = {}
    for source in package_sources():
        stem = Path(source.path).stem
        if not stem.startswith("__"):
            stems.setdefault(stem, []).append(source.path)
    assert {stem: paths for stem, paths in stems.items() if len(paths) > 1} == {}


# What benchmarks may import of this package outside of `benchmarks/inside`.
PUBLIC_MODULES = ("godwit", "godwit.errors", "godwit.testing", "godwit.windows", "godwit.workload")
BENCHMARKS = ROOT.parents[1] / "benchmarks"


def imports_of_internals(source: Source) -> Iterator[str]:
    """`godwit.testing` and `godwit.workload` are public with their modules; of the others, only the package itself."""
    for line, module in imported(source):
        if unit_of(module) is None or module in PUBLIC_MODULES:
            continue
        if unit_of(module) not in {"testing", "workload"}:
            yield f"{source.path}:{line}: imports {module}, which is not public: use benchmarks/inside"


def benchmark_sources() -> list[Source]:
    modules = frozenset(module_name(path.relative_to(ROOT)) for path in ROOT.rglob("*.py"))
    paths = [path.relative_to(BENCHMARKS) for path in sorted(BENCHMARKS.rglob("*.py"))]
    return [Source(str(path), (BENCHMARKS / path).read_text(encoding="utf-8"), modules) for path in paths]


def test_benchmarks_look_inside_in_one_place_only() -> None:
    sources = [source for source in benchmark_sources() if Path(source.path).parts[0] != "inside"]
    assert sources, f"nothing to check under {BENCHMARKS}"
    found = [breach for source in sources for breach in imports_of_internals(source)]
    assert not found, "\n" + "\n".join(found)


def test_a_module_of_the_benchmarks_has_a_name_of_its_own() -> None:
    stems: dict[str, list[str]] = {}
    for source in benchmark_sources():
        if not Path(source.path).name.startswith("__"):
            stems.setdefault(Path(source.path).stem, []).append(source.path)
    assert {stem: paths for stem, paths in stems.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("rule", [names_that_say_nothing, missing_docstring], ids=lambda rule: rule.__name__)
def test_benchmarks_keep(rule: Callable[[Source], Iterator[str]]) -> None:
    assert [breach for source in benchmark_sources() for breach in rule(source)] == []


def test_the_package_knows_nothing_of_the_benchmarks() -> None:
    assert [
        source.path
        for source in package_sources()
        for _, name in imported(source)
        if name.split(".")[0] == "benchmarks"
    ] == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("import godwit\nfrom godwit import Flock, errors, windows", 0),
        ("from godwit.errors import DefinitionError\nfrom godwit.testing.latency import Steady", 0),
        ("from godwit.workload import numbered_rows\nimport numpy", 0),
        ("from godwit.model import ledger", 1),
        ("def late():\n    import godwit.state.keys", 1),
        ("from godwit import runtime", 1),
    ],
)
def test_a_benchmark_that_looks_inside_is_reported(code: str, count: int) -> None:
    assert len(breaches(imports_of_internals, "experiments/speed.py", code)) == count


@pytest.mark.parametrize("unit", sorted(ROOMS))
def test_a_room_is_small_enough_to_look_through(unit: str) -> None:
    check_sizes(ROOT / unit)


def test_a_folder_of_benchmarks_is_small_enough_to_look_through() -> None:
    check_sizes(BENCHMARKS, besides=["results"])


def check_sizes(package: Path, besides: Sequence[str] = ()) -> None:
    for room in [path for path in package.iterdir() if path.is_dir() and path.name not in {"__pycache__", *besides}]:
        modules = [path for path in room.glob("*.py") if path.name != "__init__.py"]
        assert 0 < len(modules) <= ROOM_MODULES_MAX, f"{room.name} has {len(modules)} modules"


@pytest.mark.parametrize(
    ("path", "code", "count"),
    [
        ("runtime/instance/shared_instance.py", "from godwit.runtime.host import gate", 1),
        ("runtime/instance/shared_instance.py", "import godwit.runtime.router.link", 1),
        ("runtime/liveness/waits.py", "from godwit.runtime.processor.rows import Rows", 1),
        ("runtime/attic/chest.py", "", 1),
        ("runtime/host/gate.py", "from godwit.runtime.instance.shared_instance import SharedInstance", 0),
        ("runtime/host/gate.py", "from godwit.runtime.host import exchange", 0),
        ("runtime/controller.py", "from godwit.runtime.host import gate", 0),
    ],
)
def test_import_of_a_higher_room_is_reported(path: str, code: str, count: int) -> None:
    assert len(breaches(imports_of_higher_rooms, path, code)) == count


DOC = '"""What it decides."""\n'
MODULES = frozenset(
    "godwit godwit.errors godwit.model godwit.model.ledger godwit.state godwit.state.keys godwit.transport"
    " godwit.transport.wire godwit.runtime godwit.spark godwit.api".split()
)


def breaches(rule: Callable[[Source], Iterator[str]], path: str, code: str) -> list[str]:
    return list(rule(Source(path, DOC + code, MODULES)))


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("state/keyed_state.py", "import godwit.runtime"),
        ("state/keyed_state.py", "from godwit.runtime import host"),
        ("state/keyed_state.py", "from godwit import runtime"),
        ("state/keyed_state.py", "from .. import runtime"),
        ("state/keyed_state.py", "from ..runtime.host import Host"),
        ("state/keyed_state.py", "from godwit import Flock"),
        ("state/keyed_state.py", "def late():\n    import godwit.spark.source"),
        ("state/keyed_state.py", "if TYPE_CHECKING:\n    from godwit.api import Flock"),
        ("state/keyed_state.py", "from godwit.transport.wire import Frame"),
        ("transport/wire.py", "from godwit.state import keys"),
        ("windows/count.py", "from godwit.workload import rows"),
        ("errors.py", "from godwit.model import ledger"),
        ("model/ledger.py", "import godwit.state.keys"),
        ("runtime/host/host.py", "from godwit import spark"),
        ("spark/source.py", "from godwit.testing import tester"),
        ("api.py", "import godwit"),
        ("api.py", "import godwit.demo"),
        ("state/keyed_state.py", "import godwit.somewhere.new"),
        ("somewhere/new.py", ""),
    ],
)
def test_upward_or_sideways_import_is_reported(path: str, code: str) -> None:
    assert len(breaches(upward_imports, path, code)) == 1


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("state/keyed_state.py", "from godwit import errors\nfrom godwit.model.ledger import Ledger"),
        ("state/keyed_state.py", "from godwit.state.keys import Key\nfrom . import keys\nfrom .keys import Key"),
        ("runtime/host/host.py", "from godwit.state import keys\nimport godwit.transport.wire"),
        ("spark/source.py", "from godwit.workload import rows\nfrom godwit.windows import count"),
        ("__init__.py", "from godwit.api import Flock\nfrom . import errors"),
        ("demo.py", "import godwit\nfrom godwit import Flock"),
        ("cli/__init__.py", "import godwit.demo"),
    ],
)
def test_downward_import_is_not_reported(path: str, code: str) -> None:
    assert breaches(upward_imports, path, code) == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("model/ledger.py", "import numpy as np"),
        ("model/ledger.py", "from pyarrow import flight"),
        ("model/ledger.py", "import time"),
        ("model/ledger.py", "from os.path import join"),
        ("model/ledger.py", "def now():\n    from time import monotonic"),
        ("model/ledger.py", "import asyncio"),
        ("model/ledger.py", "from random import Random"),
        ("errors.py", "import threading"),
        ("errors.py", "import pyarrow"),
        ("workload/numbered_rows.py", "import random"),
    ],
)
def test_impure_import_is_reported(path: str, code: str) -> None:
    assert len(breaches(impure_imports, path, code)) == 1


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (
            "model/ledger.py",
            "from __future__ import annotations\nimport json\nfrom godwit import errors",
        ),
        ("workload/numbered_rows.py", "import numpy as np"),
        ("runtime/host/host.py", "import os, threading, time"),
    ],
)
def test_pure_import_is_not_reported(path: str, code: str) -> None:
    assert breaches(impure_imports, path, code) == []


@pytest.mark.parametrize("unit", sorted(RANK.keys() - SPARK_UNITS))
@pytest.mark.parametrize("code", ["import pyspark", "from pyspark.sql import Row", "import py4j.java_gateway"])
def test_pyspark_below_the_spark_layer_is_reported(unit: str, code: str) -> None:
    assert len(breaches(spark_outside_its_layer, f"{unit}/part.py", code)) == 1


@pytest.mark.parametrize("path", ["spark/source.py", "testing/tester.py", "api.py", "__init__.py"])
def test_pyspark_in_the_spark_layer_is_not_reported(path: str) -> None:
    assert breaches(spark_outside_its_layer, path, "import pyspark\nimport pysparkling") == []


@pytest.mark.parametrize("path", ["utils.py", "state/key_utils.py", "common/keys.py", "runtime/HostManager.py"])
def test_file_name_that_says_nothing_is_reported(path: str) -> None:
    assert breaches(names_that_say_nothing, path, "")


@pytest.mark.parametrize("path", ["state/keys.py", "spark/commonality.py", "runtime/__init__.py"])
def test_file_name_that_says_something_is_not_reported(path: str) -> None:
    assert breaches(names_that_say_nothing, path, "") == []


@pytest.mark.parametrize("text", ["x = 1\n", "# a comment is not a docstring\n", "x = 1\n'''late'''\n"])
def test_file_without_docstring_is_reported(text: str) -> None:
    assert list(missing_docstring(Source("state/keys.py", text)))


@pytest.mark.parametrize("text", ["", "\n", DOC, DOC + "x = 1\n"])
def test_empty_or_documented_file_is_not_reported(text: str) -> None:
    assert list(missing_docstring(Source("state/__init__.py", text))) == []


@pytest.mark.parametrize(
    "code",
    [
        "class FalconProtocol: ...",
        "def run_meces(): ...",
        "seepStyle = 1",
        "x.rhino = 1",
        "def f(megaphone): ...",
        "f(nexmark=1)",
        "import godwit.model.drrs",
        "from godwit.model import keys as trisk",
        "protocol = 'falcon'",
        "text = f'the {x} nexmark query'",
        "class NEXMark: ...",
        "match x:\n    case {**rhino}: ...",
    ],
)
def test_paper_or_workload_name_is_reported(code: str) -> None:
    assert breaches(borrowed_names, "model/protocol.py", code)


@pytest.mark.parametrize(
    "code",
    [
        '# after Falcon, section 4\nx = 1\n\n\ndef f():\n    """As in Meces."""\n',
        "fluxes = seeping = rhinoceros = 1",
        "key_count = 1",
    ],
)
def test_citation_or_mere_likeness_is_not_reported(code: str) -> None:
    assert breaches(borrowed_names, "model/protocol.py", code) == []


def test_file_named_after_a_paper_is_reported() -> None:
    assert breaches(borrowed_names, "model/falcon.py", "")


def test_workload_names_are_for_the_workload_package_and_paper_names_for_none() -> None:
    assert breaches(borrowed_names, "runtime/traffic.py", "class Nexmark: ...")
    assert breaches(borrowed_names, "workload/traffic.py", "class Nexmark: ...") == []
    assert breaches(borrowed_names, "workload/traffic.py", "class Falcon: ...")

"""Draws tables in the docs from the code: `python -m docs.tables` writes them, --check only looks.

protocols.md has the tables of the machines, internals.md the packages and what each is about, compatibility.md what tests show
of Spark beside Godwit, tuning.md the settings of Spark that are worth setting.

What a protocol shares with all others is drawn once; of each protocol only what is its own.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import godwit
from docs.features import areas
from godwit.migration import PROTOCOLS
from godwit.migration.origin import COMMON, REVOCABLE, Phase, Protocol
from godwit.migration.target import TABLE as TARGET_TABLE

PAGE = Path(__file__).with_name("protocols.md")
INTERNALS = Path(__file__).with_name("internals.md")
COMPATIBILITY = Path(__file__).with_name("compatibility.md")
TUNING = Path(__file__).with_name("tuning.md")
PACKAGE = Path(godwit.__file__).parent
# In the order of their layers, lowest first; tests/test_architecture.py has the rule.
ROOMS = (
    "errors model control migration ports state transport runtime/liveness runtime/pacing runtime/processor runtime/chunk "
    "runtime/load runtime/durable runtime/instance runtime/router runtime/handover runtime/reading runtime/backup "
    "runtime/takeover runtime/host windows workload "
    "spark/checkpoint spark/pyspark_api spark/realtime spark/results spark/hosts spark/porting spark/define spark/change"
).split()
Line = tuple[str, ...]
HEAD = ("phase", "event", "done", "next phase")
BLOCK = re.compile(r"(<!-- drawn:(?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page() -> str:
    """The page with its tables as the code has them now."""
    made = blocks()
    return BLOCK.sub(lambda found: f"{found[1]}{made[found['name']]}\n{found[3]}", PAGE.read_text())


def blocks() -> dict[str, str]:
    own = {name: own_table(protocol) for name, protocol in PROTOCOLS.items()}
    tables: list[Mapping[tuple[Any, type], Any]] = [
        COMMON,
        TARGET_TABLE,
        *(protocol.table for protocol in PROTOCOLS.values()),
    ]
    heard = {event: None for table in tables for _, event in table}
    return own | {
        "common": markdown(HEAD, once(lines(COMMON))),
        "target": markdown(HEAD, lines(TARGET_TABLE)),
        "events": markdown(("event", "what has happened"), [(e.__name__, meaning(e)) for e in heard]),
    }


def internals() -> str:
    """The page about the inside, with the packages as they are now."""
    rooms = markdown(("package", "what it is about"), [(f"`{room}`", about(room)) for room in ROOMS])
    return BLOCK.sub(lambda found: f"{found[1]}{rooms}\n{found[3]}", INTERNALS.read_text())


def compatibility() -> str:
    """The page about Spark beside Godwit, with a row for every test that shows a feature."""
    head = ("", "Spark", "Godwit", "shown by")
    made: list[str] = []
    for area, rows in areas().items():
        tests = [(row, f"[{row.test.rpartition('::')[2]}](../{row.test.partition('::')[0]})") for row in rows]
        made.append(
            f"## {area.capitalize()}\n{markdown(head, [(r.what, r.spark, r.godwit, link) for r, link in tests])}"
        )
    table = "\n\n".join(made)
    return BLOCK.sub(lambda found: f"{found[1]}{table}\n{found[3]}", COMPATIBILITY.read_text())


def tuning() -> str:
    """The page about settings, with those that `godwit.tune` sets."""
    always = godwit.tuning()
    more = [each for each in godwit.tuning(real_time=True) if each not in always]
    tables = {
        name: markdown(
            ("setting", "value", "why"), [(f"`{each.name}`", f"`{each.value}`", each.why) for each in settings]
        )
        for name, settings in (("always", always), ("real-time", more))
    }
    return BLOCK.sub(lambda found: f"{found[1]}{tables[found['name']]}\n{found[3]}", TUNING.read_text())


def about(room: str) -> str:
    """The first sentence of a package or module about itself."""
    file = PACKAGE / room / "__init__.py"
    text = ast.get_docstring(ast.parse((file if file.exists() else file.parent.with_suffix(".py")).read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def own_table(protocol: Protocol) -> str:
    own = {key: value for key, value in protocol.table.items() if COMMON.get(key) != value}
    by_phase = sorted(lines(own), key=lambda line: list(Phase).index(Phase[line[0]]))
    return f"`{' → '.join(path(protocol))}`\n\n{markdown(HEAD, by_phase)}"


def path(protocol: Protocol) -> list[str]:
    """The phases of a step that goes well: the shortest way from the first to the last."""
    ways = deque([[Phase.QUEUED]])
    while ways[0][-1] is not Phase.DONE:
        way = ways.popleft()
        after = [value[0] for (phase, _), value in protocol.table.items() if phase is way[-1]]
        ways += [[*way, phase] for phase in after if phase not in way]
    return [phase.name for phase in ways[0]]


def once(rows: Sequence[Line]) -> list[Line]:
    """A line that is the same for all phases before the commit point is drawn once."""
    revocable = {phase.name for phase in REVOCABLE}
    phases: dict[Line, set[str]] = {}
    for phase, *rest in rows:
        phases.setdefault(tuple(rest), set()).add(phase)
    shared = {rest: None for rest, found in phases.items() if found == revocable}
    return [line for line in rows if line[1:] not in shared] + [("any before RELEASING", *rest) for rest in shared]


def lines(table: Mapping[tuple[Any, type], tuple[Any, Callable[..., Any]]]) -> list[Line]:
    return [
        (phase.name, event.__name__, action.__name__.replace("_", " "), after.name)
        for (phase, event), (after, action) in table.items()
    ]


def meaning(event: type) -> str:
    return " ".join((event.__doc__ or "").split("\n\n")[0].split())


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def main() -> int:
    drawn = {PAGE: page(), INTERNALS: internals(), COMPATIBILITY: compatibility(), TUNING: tuning()}
    if "--check" in sys.argv:
        return int(any(file.read_text() != text for file, text in drawn.items()))
    for file, text in drawn.items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

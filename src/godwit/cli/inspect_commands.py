"""`godwit protocols` and `godwit history`: what can be read without a running query."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from godwit.errors import DefinitionError
from godwit.migration import PROTOCOLS, Protocol
from godwit.migration.origin import drawn

HEAD = ("phase", "event", "what is done", "next phase")


def add(commands: Any) -> None:
    protocols = commands.add_parser("protocols", help="each protocol's states and transitions")
    protocols.add_argument("name", nargs="*", metavar="NAME", help="only these protocols (default: all)")
    protocols.add_argument("--markdown", action="store_true", help="as Markdown tables, for documents")
    protocols.set_defaults(run=_protocols)
    history = commands.add_parser("history", help="what happened to a flock: requests, moves, joins, recoveries")
    history.add_argument("checkpoint", metavar="CHECKPOINT", help="the flock's checkpoint directory")
    history.add_argument("--operator", help="only events of this operator")
    history.add_argument("--json", action="store_true", help="the lines as they are in the file, one JSON object each")
    history.set_defaults(run=_history)


# -- protocols -------------------------------------------------------------------------------------------------------


def _protocols(given: argparse.Namespace) -> int:
    unknown = [name for name in given.name if name not in PROTOCOLS]
    if unknown:
        raise DefinitionError(f"there is no protocol {unknown[0]!r}", todo=f"There are: {', '.join(PROTOCOLS)}")
    chosen = [PROTOCOLS[name] for name in given.name or PROTOCOLS]
    print("\n\n".join((markdown if given.markdown else text)(protocol) for protocol in chosen))
    return 0


def markdown(protocol: Protocol) -> str:
    lines = [f"### {protocol.name}", "", f"{sentence(protocol)}", "", row(HEAD), row(["---"] * len(HEAD))]
    return "\n".join([*lines, *(row(line) for line in drawn(protocol))])


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def text(protocol: Protocol) -> str:
    return "\n".join([f"{protocol.name}: {sentence(protocol)}", *aligned([HEAD, *drawn(protocol)])])


def sentence(protocol: Protocol) -> str:
    about = protocol.about[0].upper() + protocol.about[1:]
    return f"{about}. Needs deterministic processors." if protocol.deterministic else f"{about}."


def aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    for line in lines:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


# -- history ---------------------------------------------------------------------------------------------------------


def _history(given: argparse.Namespace) -> int:
    from godwit.spark.checkpoint.history import FILE, History

    path = Path(given.checkpoint)
    if not (path / FILE).exists():
        raise DefinitionError(f"{path} has no history", todo="Give the checkpoint directory of a Flock")
    for line in History(path).lines(given.operator):
        print(json.dumps(line) if given.json else history_line(line))
    return 0


def history_line(line: dict[str, Any]) -> str:
    """One event of the history for people: time, event, migration, and all other fields as name=value."""
    rest = {name: value for name, value in line.items() if name not in ("at", "event", "migration")}
    fields = "  ".join(f"{name}={_value(value)}" for name, value in rest.items() if value not in (None, "", [], {}))
    return f"{line['at']}  {line['event']:<10} {line.get('migration') or '-':<10} {fields}".rstrip()


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

"""The report as Markdown, for the docs: the words and tables; pictures are left to the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from benchmarks.plots.blocks import Block, Cell, Pictures, Section, Table, Words
from benchmarks.plots.evaluation import Evaluation
from benchmarks.report.sections import sections


def markdown(evaluation: Evaluation) -> str:
    return "\n".join(line for section in sections(evaluation) for line in _section(section)).rstrip("\n") + "\n"


def _section(section: Section) -> Iterator[str]:
    yield from (f"## {plain(section.title)}", "")
    yield from _blocks(section.blocks)
    for part in section.parts:
        yield from (f"### {section.name}, {plain(part.title)}", "")
        yield from _blocks(part.blocks)


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Words():
                yield from (_words(block), "")
            case Table():
                yield from (*_table(block), "")
            case Pictures():
                pass


def _words(words: Words) -> str:
    text = plain(words.text)
    if words.link is not None:
        name, address = words.link
        text += f" ([{plain(name)}]({address}))" if address else f" ({plain(name)})"
    return f"**{text}**" if words.wrong else text


def _table(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(plain(name) for name in table.head)} |"
    yield "|---" * len(table.head) + "|"
    for row in table.rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _cell(cell: Cell) -> str:
    text = plain(f"{cell.text} ({cell.around})" if cell.around else cell.text)
    return f"**{text}**" if cell.wrong else text


def plain(text: str) -> str:
    """Text that means itself: nothing in it is taken for markup."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_~|\[\]])", r"\\\1", " ".join(escaped.split()))

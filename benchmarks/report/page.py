"""The report as one HTML file: style, script and pictures inside it, nothing fetched, readable without the script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from benchmarks.plots.blocks import Block, Cell, Pictures, Section, Table, Words
from benchmarks.plots.evaluation import Evaluation
from benchmarks.report.sections import sections

TITLE: Final = "Godwit: evaluation"


def html(evaluation: Evaluation) -> str:
    all_sections = sections(evaluation)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{TITLE}</title>",
            f"<style>{_resource('page.css')}</style></head>",
            "<body>",
            f"<header><h1>{TITLE}</h1>{_contents(all_sections)}</header>",
            "<main>",
            *(line for section in all_sections for line in _section(section)),
            "</main>",
            f"<script>{_resource('page.js')}</script>",
            "</body></html>",
            "",
        ]
    )


def _resource(name: str) -> str:
    return files("benchmarks.report").joinpath(name).read_text(encoding="utf-8")


def _contents(all_sections: Sequence[Section]) -> str:
    links = (f'<a href="#{escape(section.name)}">{escape(section.title)}</a>' for section in all_sections)
    return f"<nav>{''.join(links)}</nav>"


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{escape(section.name)}"><h2>{escape(section.title)}</h2>'
    yield from _blocks(section.blocks)
    for part in section.parts:
        yield f"<h3>{escape(part.title)}</h3>"
        yield from _blocks(part.blocks)
    yield "</section>"


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Words():
                yield _words(block)
            case Table():
                yield _table(block)
            case Pictures():
                yield _pictures(block)


def _pictures(block: Pictures) -> str:
    caption = f"<figcaption>{escape(block.caption)}</figcaption>" if block.caption else ""
    legend = f'<div class="legend">{block.legend}</div>' if block.legend else ""
    return f'<figure>{caption}{legend}<div class="pictures">{"".join(block.drawn)}</div></figure>'


def _words(words: Words) -> str:
    text = escape(words.text)
    if words.link is not None:
        name, address = words.link
        text += f' (<a href="{escape(address)}">{escape(name)}</a>)' if address else f" ({escape(name)})"
    return f'<p class="wrong">{text}</p>' if words.wrong else f"<p>{text}</p>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in table.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _row(row: Sequence[Cell]) -> str:
    return "".join(_cell("td" if index else "th", cell) for index, cell in enumerate(row))


def _cell(tag: str, cell: Cell) -> str:
    wrong = ' class="wrong"' if cell.wrong else ""
    around = f" <small>({escape(cell.around)})</small>" if cell.around else ""
    return f"<{tag}{wrong}>{escape(cell.text)}{around}</{tag}>"

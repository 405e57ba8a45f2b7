"""The `godwit` command: which commands there are; a mistake is answered with one line and exit code 2.

Each command imports what it needs when it runs, so that no command loads slow libraries for another.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NoReturn

from godwit import __version__
from godwit.errors import DefinitionError, GodwitError

ABOUT = "Live, exactly-once keyed state for PySpark Structured Streaming."
WRONG = 2


class Parser(argparse.ArgumentParser):
    """Prints a mistake as one line; --help prints the rest."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> Parser:
    from godwit.cli import inspect_commands

    root = Parser(prog="godwit", description=ABOUT, allow_abbrev=False)
    root.add_argument("--version", action="version", version=f"godwit {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    demo = commands.add_parser(
        "demo", help="a running query that is scaled, moved, drained and hit, checked for exactness"
    )
    demo.add_argument("--kafka", action="store_true", help="from Kafka to Kafka, with Spark's real-time trigger")
    demo.set_defaults(run=_demo)
    inspect_commands.add(commands)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        code: int = given.run(given)
    except GodwitError as error:
        print(f"godwit: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("godwit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has closed it
        sys.stderr.close()
        return 1
    return code


def _demo(given: argparse.Namespace) -> int:
    if given.kafka:
        return _demo_on_kafka()
    from godwit.demo import main as demo

    return demo()


def _demo_on_kafka() -> int:
    if find_spec("confluent_kafka") is None:
        raise DefinitionError("the demo on Kafka needs the package confluent-kafka", todo="pip install 'godwit[kafka]'")
    from godwit.demo.kafka_demo import main as demo

    return demo()

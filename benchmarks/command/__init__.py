"""The command `python -m benchmarks`: which benchmarks it has, and how it answers mistakes: one line, and exit code 2.

Libraries that take long to load are loaded only by the benchmark that needs them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from godwit.errors import GodwitError

ABOUT = """
Measures what Godwit costs and what a reconfiguration does to rows. Run it from the root of the repository, on a machine that
does nothing else. Progress goes to standard error; each benchmark explains its figures: python -m benchmarks BENCHMARK --help
"""
WRONG = 2


class Parser(argparse.ArgumentParser):
    """A mistake is answered in one line; --help has the rest."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> Parser:
    from benchmarks.command import (
        elasticity_flags,
        evaluation_flags,
        key_count_flags,
        migration_flags,
        progress_flags,
        real_time_flags,
        tuning_flags,
    )

    root = Parser(prog="python -m benchmarks", description=ABOUT, allow_abbrev=False)
    kinds = root.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True, parser_class=Parser)
    for module in (
        migration_flags,
        real_time_flags,
        evaluation_flags,
        elasticity_flags,
        key_count_flags,
        progress_flags,
        tuning_flags,
    ):
        module.add(kinds, kind)
    return root


def kind(kinds: Any, name: str, brief: str, about: str, examples: str) -> argparse.ArgumentParser:
    """A new subcommand, with a help text that keeps its lines."""
    made: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=brief,
        description=about,
        epilog=examples,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        code: int = given.run(given)
    except GodwitError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has gone away
        sys.stderr.close()
        return 1
    return code

"""Which lines of the product the simulator executes: `python -m tests.sim --coverage`, the tables of design/019.

Counted are lines inside functions: what runs when a module is imported says nothing of it. All recorded schedules are run, and
schedules by chance.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import coverage

SOURCE = Path(__file__).parents[2] / "src" / "godwit"
PACKAGES = ("runtime", "migration", "model", "state", "transport", "control", "ports.py")
HALF = 0.5
# Why a module, or part of it, is not executed: the first line that fits.
REASONS = {
    "control/": "the driver's rules and plans: pure, tried by tests of their own",
    "transport/flight.py": "the simulated network is in its place; contract tests run on both",
    "transport/line.py": "gives the world that is used; the simulated network is in its place",
    "transport/addresses.py": "addresses of machines; there is one simulated network",
    "ports.py": "the kernel is in its place; contract tests run on both",
    "runtime/reading/": "reads of state by users; the checks look into the hosts themselves",
    "runtime/processor/black_box.py": "rows that end their process: real processes only",
    "runtime/processor/": "dead letters and deadlines of user code are not in the load",
    "transport/datagrams.py": "the simulated network is in its place; contract tests run on both",
    "runtime/liveness/": "task slots, and whether a flock is still open: Spark's part",
    "runtime/load/sketch.py": "hot keys are looked for by the driver",
    "runtime/instance/failure_isolation.py": "rows on which user code fails are not in the load",
    "runtime/instance/user_code.py": "limits of user code are not in the load",
    "runtime/pacing/switch_interval.py": "a matter of real threads",
    "runtime/router/pace.py": "rows that take long are not in the load",
    "runtime/controller.py": "the driver's service: only what hosts ask of it is used",
    "state/spill": "state that exceeds memory is not in the load",
    "state/ledger_spill.py": "state that exceeds memory is not in the load",
    "state/memory_limit.py": "state that exceeds memory is not in the load",
    "state/slices.py": "state that exceeds memory is not in the load",
    "state/converters.py": "keys and values of other types: the processor has two numbers",
    "state/maps.py": "the processor has no maps, and no time to live",
    "state/deadlines.py": "the processor has no maps, and no time to live",
    "state/": "damage, copies of a log, and state read from one: asked for by users",
    "runtime/host/driver_requests.py": "measures, status and copies of a flock: asked for by users",
    "runtime/router/lanes.py": "lanes by columns of the user's, and gathered input: Spark's part",
}


@dataclass(frozen=True, slots=True)
class Share:
    """Of a module: how many lines of its functions there are, and how many were executed."""

    module: str
    lines: int
    executed: int

    @property
    def share(self) -> float:
        return self.executed / self.lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=150)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    measured = coverage.Coverage(data_file=None, source=[str(SOURCE)], concurrency=["greenlet"], messages=False)
    measured.start()
    run_all(options.first, options.seeds)
    measured.stop()
    for line in table(list(shares(measured))):
        print(line)
    return 0


def run_all(first: int, seeds: int) -> None:
    """Imported here: what was imported before the measuring began is not measured."""
    from tests.sim.run import Run, run_seed
    from tests.sim.schedule import RECORDED, Schedule

    for path in sorted(RECORDED.glob("*.json")):
        schedule = Schedule.read(path)
        Run(schedule.dice[0], schedule=schedule).run()
    for seed in range(first, first + seeds):
        run_seed(seed)


def shares(measured: coverage.Coverage) -> Iterator[Share]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(PACKAGES):
            continue
        _, statements, _, missing, _ = measured.analysis2(str(path))
        inside = set(statements) & lines_of_functions(path)
        if inside:
            yield Share(name, len(inside), len(inside - set(missing)))


def lines_of_functions(path: Path) -> set[int]:
    """Lines of the bodies of functions, without the lines that define functions inside them."""
    bodies: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            bodies |= set(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return bodies


def table(found: list[Share]) -> Iterator[str]:
    """Packages with their share, then modules of which less than half is executed, and why."""
    yield "| package | lines in functions | executed |"
    yield "|---|---|---|"
    packages: dict[str, list[Share]] = {}
    for one in found:
        packages.setdefault(str(Path(one.module).parent), []).append(one)
    for package, some in packages.items():
        lines, executed = sum(one.lines for one in some), sum(one.executed for one in some)
        why = f": {reason('control/')}" if package == "control" else ""
        yield f"| `{'ports' if package == '.' else package}` | {lines:,} | {executed / lines:.0%}{why} |"
    yield ""
    yield "| module, less than half of it executed | executed | why |"
    yield "|---|---|---|"
    for one in found:
        if one.share < HALF and not one.module.startswith("control/"):
            yield f"| `{one.module}` | {one.share:.0%} of {one.lines} | {reason(one.module)} |"


def reason(module: str) -> str:
    return next((why for name, why in REASONS.items() if module.startswith(name)), "")


if __name__ == "__main__":
    sys.exit(main())

"""What was run, on what, and whether all of it was exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.campaign.aims import EXACTNESS
from benchmarks.plots.blocks import Block, Cell, Section, Table, Words
from benchmarks.plots.captions import EXPERIMENTS
from benchmarks.plots.evaluation import Evaluation, Run
from benchmarks.plots.figures import MISSING, number


def summary(evaluation: Evaluation) -> Section:
    blocks: list[Block] = list(_exact(evaluation.runs))
    blocks += _left_out(evaluation.left_out)
    rows = [[Cell(name), Cell(value)] for name, value in _circumstances(evaluation)]
    blocks += [Table(["", ""], rows)] if rows else []
    return Section("summary", "What was run", blocks)


def exactness(runs: Sequence[Run]) -> Counter[str]:
    """How many rows, and how many of them went wrong in which way, over all runs that were checked."""
    counts: Counter[str] = Counter(rows=0, runs=0, **dict.fromkeys(EXACTNESS, 0))
    for run in runs:
        if run.wrong is not None:
            counts.update({"rows": int(run.number("rows") or 0), "runs": 1, **run.wrong})
    return counts


def exact_words(runs: Sequence[Run]) -> str:
    """One line: over how many rows, and what was found."""
    counts = exactness(runs)
    wrong = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in EXACTNESS)
    return f"{counts['rows']:,} rows in {_runs(counts['runs'])}: {wrong}"


def _exact(runs: Sequence[Run]) -> Iterator[Words]:
    if not runs:
        yield Words(f"{MISSING.capitalize()}: there are no results.")
        return
    wrong = sum(bool(run.fault) for run in runs)
    yield Words(f"Exactness over {exact_words(runs)}.", wrong=bool(wrong))
    unchecked = sum(run.wrong is None for run in runs)
    if unchecked:
        yield Words(f"Not checked for exactness: {_runs(unchecked)}.")
    for run in runs:
        if run.fault:
            yield Words(f"Not exact: {_where(run)}: {run.fault}.", wrong=True)


def _where(run: Run) -> str:
    at = f"{run.text('swept')} {number(run.at)}" if run.at is not None else ""
    names = [run.text("experiment"), run.text("workload"), run.way.label, run.trigger, run.text("order"), at]
    return ", ".join([*filter(None, names), f"run {int(run.number('repeat') or 0) + 1}"])


def _left_out(runs: Sequence[Run]) -> Iterator[Words]:
    """Older runs are not shown, but what went wrong in them is not hidden either."""
    if runs:
        wrong = sum(bool(run.fault) for run in runs)
        yield Words(
            f"Left out, because the same was measured again later: {_runs(len(runs))}, {wrong} of them not exact."
        )


def _circumstances(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    runs = evaluation.runs
    if not runs:
        return
    yield "commit", ", ".join(evaluation.values_of("commit")) or MISSING
    yield "date", ", ".join(_date(run) for run in evaluation.values_of("run")) or MISSING
    yield "machine", "; ".join(dict.fromkeys(_machine(run) for run in runs)) or MISSING
    yield "versions", "; ".join(dict.fromkeys(_versions(run) for run in runs)) or MISSING
    by_experiment = Counter(run.text("experiment") for run in runs)
    names = [each.name for each in EXPERIMENTS]
    others = sorted(by_experiment.keys() - set(names))
    yield "runs", ", ".join(f"{name} {by_experiment[name] or MISSING}" for name in [*names, *others])


def _date(run: str) -> str:
    """20261115T132532Z for people; whatever has another form as it is."""
    digits = run.replace("T", "").removesuffix("Z")
    if len(digits) != 14 or not digits.isdigit():
        return run
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]} {digits[8:10]}:{digits[10:12]} UTC"


def _machine(run: Run) -> str:
    machine = run.line.get("machine") or {}
    named = [
        (machine.get("cores"), "cores"),
        (machine.get("cpu"), ""),
        (machine.get("memory_gb"), "GB"),
        (machine.get("system"), ""),
    ]
    return ", ".join(f"{value} {unit}".strip() for value, unit in named if value is not None)


def _versions(run: Run) -> str:
    versions = run.line.get("versions") or {}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _runs(count: int) -> str:
    return f"{count:,} run{'s' * (count != 1)}"

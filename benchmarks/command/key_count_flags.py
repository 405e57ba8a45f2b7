"""`python -m benchmarks key-count`, `recovery`, `compare` and `docs`: the figures that README and docs/benchmarks.md show."""

from __future__ import annotations

import argparse
from typing import Any

KEY_COUNT = """
Rows a second and batch latency of one query that counts rows per key: by a mapInArrow that only copies, by Spark's own state
(transformWithStateInPandas and SQL, both in RocksDB), and by Godwit (the same StatefulProcessor, and a native processor). All
ways get the same rows in the same Spark session; they are interleaved and repeated, so that noise of the machine hits all of
them. Then the memory of a host with 1,000,000 keys. Results are appended to benchmarks/results/throughput.jsonl.
With --keys, something else: rows a second of the native processor and of Spark SQL, and the memory of the hosts, for each of
these numbers of keys. Results are appended to benchmarks/results/keys.jsonl.
"""
KEY_COUNT_EXAMPLES = """
examples:
  python -m benchmarks key-count --repeats 1 --batches 8 --no-memory     a few minutes, to see that all works
  python -m benchmarks key-count --ways godwit-native spark-sql
  python -m benchmarks key-count --keys 10000 100000 1000000 --batches 10
"""
RECOVERY = """
Fills one host with state of a given size, kills the host with SIGKILL, and measures how long it is away (away_s) and how long
the next generation takes to load its state (load_s). Results are appended to benchmarks/results/recovery.jsonl.
"""
COMPARE = """
Rows a second of this tree beside those of another commit, under the same load, in one run. Each pair measures both, each in a
process of its own, and the order changes from pair to pair, so that drift of the machine hits both. The benchmark is that of
this tree; only the godwit that it imports differs. Results are appended to benchmarks/results/compare.jsonl.
"""
COMPARE_EXAMPLES = """
examples:
  python -m benchmarks compare --base main --pairs 5
"""
DOCS = """
Writes the figures in README.md, docs/benchmarks.md, docs/evaluation.md and docs/evaluation.html from the newest results.
"""


def add(kinds: Any, kind: Any) -> None:
    _add_key_count(kind(kinds, "key-count", "rows a second, beside Spark's own state", KEY_COUNT, KEY_COUNT_EXAMPLES))
    _add_recovery(kind(kinds, "recovery", "how soon a killed host serves again", RECOVERY, ""))
    _add_compare(kind(kinds, "compare", "rows a second, beside another commit", COMPARE, COMPARE_EXAMPLES))
    _add_docs(kind(kinds, "docs", "write the figures in README and docs", DOCS, ""))


def _add_key_count(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("--repeats", type=int, default=3, help="how often each way is measured (%(default)s)")
    flags.add_argument(
        "--batches", type=int, default=30, help="batches measured each time, after a warm-up (%(default)s)"
    )
    flags.add_argument("--small", type=int, default=500, help="rows of a small batch (%(default)s)")
    flags.add_argument("--large", type=int, default=100_000, help="rows of a large batch (%(default)s)")
    flags.add_argument("--ways", nargs="*", metavar="WAY", help="which ways to measure (all)")
    flags.add_argument("--no-memory", action="store_true", help="leave out the memory of 1 M keys x 100 B")
    flags.add_argument("--keys", type=int, nargs="+", metavar="N", help="measure by number of keys instead")
    flags.add_argument(
        "--limit", type=float, default=120.0, help="with --keys: seconds for each number and way (%(default)s)"
    )
    flags.set_defaults(run=_key_count)


def _add_recovery(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("--sizes", type=int, nargs="*", default=[1, 100, 400], help="state sizes in MB (%(default)s)")
    flags.add_argument("--repeats", type=int, default=3, help="kills per size (%(default)s)")
    flags.set_defaults(run=_recovery)


def _add_compare(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("--base", default="HEAD~1", help="the commit to compare with (%(default)s)")
    flags.add_argument("--pairs", type=int, default=5, help="how often both are measured (%(default)s)")
    flags.add_argument("--batches", type=int, default=24, help="batches measured each time (%(default)s)")
    flags.set_defaults(run=_compare)


def _add_docs(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a file is out of date")
    flags.set_defaults(run=_docs)


def _key_count(given: argparse.Namespace) -> int:
    from benchmarks.key_count import keys_line
    from benchmarks.key_count.ways import Plan, run

    if given.keys is not None:
        of_keys = keys_line.KeysPlan(given.keys, given.repeats, given.batches, given.large, given.limit)
        keys_line.run(of_keys.checked())
        return 0
    plan = Plan(given.repeats, given.batches, (given.small, given.large), given.ways, memory=not given.no_memory)
    run(plan.checked())
    return 0


def _recovery(given: argparse.Namespace) -> int:
    from benchmarks.key_count.recovery import run

    run(given.sizes, given.repeats)
    return 0


def _compare(given: argparse.Namespace) -> int:
    from benchmarks.key_count.compare import compare

    compare(given.base, given.pairs, given.batches)
    return 0


def _docs(given: argparse.Namespace) -> int:
    from benchmarks.report.docs import write

    return write(check=given.check)

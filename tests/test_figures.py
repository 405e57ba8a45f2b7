"""Every figure in README and docs comes from the raw results: whoever changes one by hand, or measures anew, is told."""

from __future__ import annotations

from benchmarks.report.docs import ROOT, stale


def test_pages_say_what_the_results_say() -> None:
    assert [str(path.relative_to(ROOT)) for path in stale()] == [], "run `make bench-report`"

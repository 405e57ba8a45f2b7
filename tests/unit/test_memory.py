"""Processor time beside a run: who counts, and what is beyond the usual."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.running.memory import CpuTime, beyond_steady

BUSY = "import time\nwhile time.process_time() < 0.7: pass\nprint('done', flush=True)\ninput()"


def test_what_counts_is_what_is_beyond_the_steady_rate() -> None:
    samples = [(0.0, 100.0), (10.0, 105.0), (12.0, 109.0), (20.0, 113.0)]
    assert beyond_steady(samples, from_s=10, to_s=12, steady_from_s=0) == pytest.approx(4 - 2 * 0.5)
    assert beyond_steady(samples, from_s=10, to_s=11, steady_from_s=5) == pytest.approx(2 - 0.5), "between samples"
    assert beyond_steady(samples[:2], from_s=4, to_s=6, steady_from_s=0) == pytest.approx(0)


def test_a_process_started_by_this_one_counts_and_goes_on_counting_when_it_has_ended() -> None:
    cpu = CpuTime()
    cpu.sample()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BUSY], **pipes) as child:
        assert child.stdout is not None
        child.stdout.readline()
        cpu.sample()
        child.communicate(b"\n")
    cpu.sample()
    before, busy, after = (used for _, used in cpu.samples)
    assert 0.6 < busy - before < 5
    assert after >= busy

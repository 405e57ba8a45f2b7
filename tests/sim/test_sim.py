"""Some hundred schedules hold, every kind of fault happens in them, and the same seed is the same schedule."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from godwit import ports
from tests.sim.__main__ import main, results
from tests.sim.faults import KINDS
from tests.sim.kernel import Kernel
from tests.sim.moves import PROTOCOLS
from tests.sim.run import Result, Run

SEEDS = 300  # with what else is run here and in test_recorded about 90 s of one core
JOBS = 2


def held(result: Result) -> Result:
    assert not result.breach, f"seed {result.seed}: {result.breach}\n" + "\n".join(result.story[-60:])
    return result


@pytest.mark.timeout(900)
def test_schedules_hold() -> None:
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for result in map(held, results(0, SEEDS, None, JOBS)):
        faults += result.faults
        outcomes += result.outcomes
    assert {*KINDS, "takeover"} <= set(faults), "some kind of fault never happened"
    assert outcomes["done"] > SEEDS / 4
    assert outcomes["stayed"] > SEEDS / 20


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_protocol_comes_to_both_ends(protocol: str) -> None:
    outcomes: Counter[str] = Counter()
    for ran, result in enumerate(map(held, results(5_000, 80, protocol, JOBS)), 1):
        outcomes += result.outcomes
        if ran >= 20 and outcomes["done"] and outcomes["stayed"]:
            return
    pytest.fail(f"of done and stayed one never happened: {outcomes}")


def told(run: Run) -> list[str]:
    """What happened, without the name of the directory of the simulated disks."""
    return [re.sub(r"godwit-sim-\w+", "godwit-sim", line) for line in run.kernel.told()]


def test_same_seed_is_the_same_schedule() -> None:
    one, other = Run(7), Run(7)
    one.run()
    other.run()
    assert told(one) == told(other)
    assert one.kernel.turns == other.kernel.turns


def test_same_seed_is_the_same_schedule_in_every_process() -> None:
    assert list(results(0, 4, None, jobs=2)) == list(results(0, 4, None, jobs=1))


def test_power_cut_loses_nothing_that_was_synced(tmp_path: Path) -> None:
    def left(seed: int) -> int:
        kernel, path = Kernel(Random(seed)), tmp_path / str(seed)
        kernel.sync_s = 0.05

        def write() -> None:
            fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            ports.writev(fd, [b"safe"])
            slow = ports.thread(lambda: ports.fsync(fd), "slow")  # it may be over after the next one
            slow.start()
            ports.fsync(fd)
            ports.writev(fd, [b"not safe"])
            slow.join()

        with ports.use(kernel):
            process = kernel.process("host-0", "host-0", write)
            assert kernel.run(lambda: not process.threads, 1_000, kernel.time_s + 1)
            kernel.cut_power(process)
            kernel.end()
        return path.stat().st_size

    sizes = {left(seed) for seed in range(20)}
    assert min(sizes) >= len("safe")
    assert len(sizes) > 1


def test_failing_seed_is_told_with_the_way_to_replay_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Result(3, Counter(), Counter(), 10, "I1: two owners", "I1", ["something happened"])
    monkeypatch.setattr("tests.sim.__main__.results", lambda *_: iter([broken]))
    monkeypatch.setattr("sys.argv", ["sim", "--seeds", "5", "--first", "0", "--failures", "1"])
    assert main() == 1
    told = capsys.readouterr().out
    assert "breaks I1" in told
    assert "python -m tests.sim --seed 3" in told

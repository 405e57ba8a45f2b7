"""The peers themselves, each in a short run: exact, on the right side of every check, and nothing left behind.

They need `make peers`; the rows of the Java side need a JDK alone.
"""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyspark
import pytest

from benchmarks import peers
from benchmarks.peers import prepare
from benchmarks.peers.failed import PeerFailed
from benchmarks.peers.peer_figures import ballasts, workload_of
from benchmarks.peers.peer_settings import PeerSettings
from godwit.errors import DefinitionError
from godwit.workload.numbered_rows import keys_of

pytestmark = [pytest.mark.long, pytest.mark.spark]

SHORT = PeerSettings(keys=500, rate=1_000, state_bytes=256, warm_up_s=1.0, steady_s=3.0, after_s=1.0)
SLOW = replace(SHORT, system="spark", way="pandas", keys=100, rate=150, warm_up_s=4.0)
EXACT = {"lost": 0, "duplicated": 0, "out_of_order": 0, "wrong_state": 0}


class Watch:
    def __init__(self) -> None:
        self.phases: list[str] = []
        self.seen = 0

    def phase(self, text: str) -> None:
        self.phases.append(text)

    def rows(self, seen: int, total: int) -> None:
        self.seen = max(self.seen, seen)


def available(check: Callable[[], Any]) -> bool:
    try:
        check()
    except DefinitionError:
        return False
    return True


def needs(system: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not available(lambda: prepare.require(system)), reason=f"no {system}: see `make peers`")


# -- the same rows ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def java_rows(tmp_path_factory: pytest.TempPathFactory) -> Callable[[PeerSettings, int], tuple[list[int], str]]:
    """Keys of the first rows and ballast of the last key, as the Java side has them."""
    if not available(prepare.javac):
        pytest.skip("no Java compiler")
    classes = tmp_path_factory.mktemp("classes")
    source = prepare.SOURCES / "shared" / "Rows.java"
    subprocess.run([str(prepare.javac()), "-d", str(classes), str(source)], check=True)

    def rows(settings: PeerSettings, count: int) -> tuple[list[int], str]:
        given = (settings.seed, settings.keys, settings.skew, count, settings.state_bytes)
        java = str(prepare.java_home() / "bin" / "java")
        command = [java, "-cp", str(classes), "godwit.peers.Rows", *map(str, given)]
        *keys, ballast = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        return [int(key) for key in keys], ballast

    return rows


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
@pytest.mark.parametrize(
    ("keys", "skew"), [(1, 0.0), (10_000, 0.0), (2**40, 0.0), (1, 1.0), (100, 0.5), (100_000, 1.0), (100_000, 1.5)]
)
def test_java_draws_the_keys_that_we_draw(
    java_rows: Callable[[PeerSettings, int], tuple[list[int], str]], keys: int, skew: float, seed: int
) -> None:
    settings = replace(SHORT, keys=keys, skew=skew, seed=seed, state_bytes=0)
    found, _ = java_rows(settings, 20_000)
    assert found == keys_of(workload_of(settings), np.arange(20_000, dtype=np.int64)).tolist()


@pytest.mark.parametrize("size", [0, 1, 8, 1_023])
def test_java_fills_state_with_the_bytes_that_we_expect(
    java_rows: Callable[[PeerSettings, int], tuple[list[int], str]], size: int
) -> None:
    settings = replace(SHORT, keys=5, seed=3, state_bytes=size)
    _, found = java_rows(settings, 1)
    assert bytes.fromhex(found) == dict(ballasts(settings))[4]


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(replace(SHORT, backend="hashmap"), id="savepoint-hashmap", marks=needs("flink")),
        pytest.param(replace(SHORT, way="adaptive"), id="adaptive-rocksdb", marks=needs("flink")),
        pytest.param(
            replace(SHORT, way="adaptive", backend="hashmap", parallelism=2, parallelism_after=1),
            id="adaptive-hashmap-in",
            marks=needs("flink"),
        ),
        pytest.param(replace(SHORT, through="kafka"), id="savepoint-kafka", marks=needs("flink")),
        pytest.param(
            replace(SHORT, way="adaptive", through="kafka", skew=0.5), id="adaptive-kafka", marks=needs("flink")
        ),
        pytest.param(replace(SHORT, system="spark", way="sql", skew=1.0), id="sql", marks=needs("spark")),
        pytest.param(replace(SLOW, parallelism=2, parallelism_after=3), id="pandas", marks=needs("spark")),
    ],
)
def test_a_peer_changes_its_parallelism_under_load_and_is_exact(settings: PeerSettings) -> None:
    watch = Watch()
    line = peers.measure(settings, watch)
    assert line["sustained"], line
    assert {name: line[name] for name in EXACT} == EXACT
    assert line["rows"] == settings.rows
    assert line["system_version"] == {"flink": "2.3.0", "spark": pyspark.__version__}[settings.system]
    # All of these ways take the job down: what rows suffered must be seen, and be over before the load ended.
    assert line["peak_jitter_max_ms"] > 50
    assert 0 < line["reconfiguration_s"] < settings.watched_s
    assert line["load_outlasted_it"]
    assert sum(line["timeline"]["rows"]) >= 0.8 * settings.rate * (settings.watched_s + 5)
    spans = line["spans"]
    assert spans[-1][2] == pytest.approx(line["reconfiguration_s"], abs=0.05)
    assert all(before[2] == after[1] for before, after in pairwise(spans))
    assert watch.seen > 0
    assert watch.phases[-4:] == ["steady", f"reconfiguring ({settings.system} {settings.way})", "after", "checking"]


@needs("spark")
def test_a_rate_that_a_peer_cannot_carry_is_said_and_not_measured() -> None:
    watch = Watch()
    line = peers.measure(replace(SLOW, rate=30_000), watch)
    assert line["sustained"] is False
    assert line["disruption_ms"] is None
    assert not any("reconfiguring" in phase for phase in watch.phases)


@needs("flink")
def test_a_job_that_fails_is_told_with_flinks_own_words_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A jar that has no job in it is refused by Flink itself."""
    empty = tmp_path / "empty.jar"
    with zipfile.ZipFile(prepare.jar("flink")) as full, zipfile.ZipFile(empty, "w") as packed:
        packed.writestr(prepare.DIGEST, full.read(prepare.DIGEST))
    monkeypatch.setattr(prepare, "jar", lambda _: empty)
    with pytest.raises(PeerFailed, match="Counting"):
        peers.measure(SHORT, Watch())
    assert not [child for child in psutil.Process().children(recursive=True) if "org.apache.flink" in _words(child)]


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@needs("flink")
def test_what_is_set_up_is_not_set_up_again() -> None:
    before = prepare.jar("flink").stat().st_mtime_ns
    watch = Watch()
    prepare.prepare(watch)
    assert watch.phases == []
    assert prepare.jar("flink").stat().st_mtime_ns == before

"""What a host was working on when its process ended, as the next generation, or an heir, finds it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from godwit.errors import RowKillsHost
from godwit.model.progress import BatchRef
from godwit.runtime.processor.crash_markers import CrashMarkers, NoCrashMarker, Suspect, WorkKind

DIES = """
import os, signal, sys
from pathlib import Path
from godwit.runtime.processor.crash_markers import CrashMarkers
marker = CrashMarkers(Path(sys.argv[1]), int(sys.argv[2]), "flock-1").marker("op")
marker.begin("rows", 4, "lane-0", 10, 19)
marker.end()
if marker.is_suspect("rows", 4, "lane-0", 0, 100):
    marker.begin("rows", 4, "lane-0", 13, 13, one=True)
else:
    marker.begin("rows", 4, "lane-0", 10, 19)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _die(directory: Path, generation: int) -> None:
    done = subprocess.run([sys.executable, "-c", DIES, str(directory), str(generation)], check=False)
    assert done.returncode == -signal.SIGKILL


def test_row_is_known_after_the_process_has_ended_twice(tmp_path: Path) -> None:
    _die(tmp_path, 1)
    marker = CrashMarkers(tmp_path, 2, "flock-1").marker("op")
    assert marker.is_suspect("rows", 4, "lane-0", 19, 30)
    assert not marker.is_suspect("rows", 4, "lane-0", 20, 30)
    assert not marker.is_suspect("rows", 5, "lane-0", 10, 19)
    assert not marker.is_suspect("rows", 4, "lane-1", 10, 19)
    assert not marker.is_deadly("rows", 4, "lane-0", 13, 13)
    _die(tmp_path, 3)
    for generation in (4, 5):  # also if that one ends for another reason before the row comes
        marker = CrashMarkers(tmp_path, generation, "flock-1").marker("op")
        assert marker.is_deadly("rows", 4, "lane-0", 13, 13)
        assert not marker.is_deadly("rows", 4, "lane-0", 14, 14)


def test_heir_of_a_lost_host_knows_what_it_was_at(tmp_path: Path) -> None:
    (tmp_path / "lost").mkdir()
    (tmp_path / "heir").mkdir()
    _die(tmp_path / "lost", 1)
    heir = CrashMarkers(tmp_path / "heir", 7, "flock-1")
    heir.inherit(tmp_path / "lost")
    assert heir.suspects == [Suspect("op", "rows", 4, "lane-0", 10, 19)]
    assert CrashMarkers(tmp_path / "heir", 8, "flock-1").suspects == heir.suspects


def test_another_opening_of_the_flock_forgets(tmp_path: Path) -> None:
    _die(tmp_path, 1)
    assert CrashMarkers(tmp_path, 2, "flock-1").suspects
    assert not CrashMarkers(tmp_path, 3, "flock-2").suspects


def test_damaged_files_are_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "suspects.json").write_text('{"incarnation": "flock-1", "susp')
    (tmp_path / "breadcrumbs-1").write_bytes(b"\x07flock-1" + b"\xff" * 700)
    (tmp_path / "breadcrumbs-2").write_bytes(b"")
    CrashMarkers(tmp_path, 3, "flock-1").marker("op").begin("rows", 0, "0", 0, 1)


def test_process_that_ends_between_two_calls_suspects_nobody(tmp_path: Path) -> None:
    marker = CrashMarkers(tmp_path, 1, "flock-1").marker("op")
    marker.begin("rows", 4, "lane-0", 10, 19)
    marker.end()
    assert not CrashMarkers(tmp_path, 2, "flock-1").suspects


def test_more_instances_than_slots_leave_no_crumbs_and_no_errors(tmp_path: Path) -> None:
    crash_markers = CrashMarkers(tmp_path, 1, "flock-1")
    for n in range(100):
        crash_markers.marker(f"op-{n}").begin("rows", 0, "x" * 1_000, 0, n)
    assert len(CrashMarkers(tmp_path, 2, "flock-1").suspects) == 64


def test_error_names_the_row(tmp_path: Path) -> None:
    from tests.property.bench_host import BenchHost, chunk_of, operator_of, request, welcome

    host = BenchHost(tmp_path / "host", operator_of())
    crash_markers = CrashMarkers(tmp_path, 1, "")
    crash_markers.suspects = [Suspect("everything", "rows", 0, "run 0", 1, 1, sure=True)]
    host.instance.code.marker = crash_markers.marker("everything")
    host.do(lambda i: i.open(request(0), "0", 1_000, welcome))
    with pytest.raises(RowKillsHost) as refused:
        host.do(lambda i: i.apply(request(0), "0", chunk_of([("a", 1), ("b", 2)])))
    assert refused.value.fields == {"operator": "everything", "key": ("b",), "lane": "0", "batch": 0, "row": 1}
    assert not host.instance.state.key_count
    host.close()


def test_row_of_a_later_run_is_not_taken_for_the_one_that_had_its_place(tmp_path: Path) -> None:
    """A later run may cut the batch otherwise, so another row has that number."""
    from tests.property.bench_host import BenchHost, chunk_of, operator_of, welcome

    places: list[str] = []

    class Noting(NoCrashMarker):
        def begin(self, kind: WorkKind, batch: int, lane: str, first: int, last: int, one: bool = False) -> None:
            places.append(lane)

    host = BenchHost(tmp_path / "host", operator_of())
    crash_markers = CrashMarkers(tmp_path, 1, "")
    for run in ("run", "later"):
        later = BatchRef("query", run, 0)
        host.instance.code.marker = Noting()
        host.do(lambda i, later=later: i.open(later, "0", 1_000, welcome))
        host.do(lambda i, later=later: i.apply(later, "0", chunk_of([("a", 1), ("b", 2)])))
        crash_markers.suspects = [Suspect("everything", "rows", 0, places[0], 3, 3, sure=True)]  # by the first run
        host.instance.code.marker = crash_markers.marker("everything")
        if run == "run":
            with pytest.raises(RowKillsHost):
                host.do(lambda i, later=later: i.apply(later, "0", chunk_of([("c", 3), ("d", 4)], 2)))
        else:
            host.do(lambda i, later=later: i.apply(later, "0", chunk_of([("c", 3), ("d", 4)], 2)))
    assert host.instance.state.key_count == 4
    host.close()

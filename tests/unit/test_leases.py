"""The small files beside a changelog: who owns a checkpoint, where a host serves, why it ended or did not start."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointCorrupt, CheckpointUnusable, ProcessorTimeout, StaleGeneration
from godwit.runtime.liveness.leases import (
    Lease,
    check_owner,
    drop_failure,
    end_lease,
    read_failure,
    read_lease,
    read_obituary,
    write_failure,
    write_lease,
    write_obituary,
    write_owner,
)

CORRUPT = CheckpointCorrupt("log-1 is damaged", todo="Put back the file", operators="speed")


def test_the_newest_flock_owns_the_checkpoint(tmp_path: Path) -> None:
    check_owner(str(tmp_path), "first")
    write_owner(str(tmp_path), "first")
    check_owner(str(tmp_path), "first")
    write_owner(str(tmp_path), "second")
    check_owner(str(tmp_path), "second")
    with pytest.raises(StaleGeneration, match=r"opened again since.*close this Flock"):
        check_owner(str(tmp_path), "first")


def test_a_closed_flock_says_so_until_another_is_opened(tmp_path: Path) -> None:
    write_owner(str(tmp_path), "first", closed=True)
    with pytest.raises(StaleGeneration, match=r"has been closed .*define the operator again"):
        check_owner(str(tmp_path), "first")
    write_owner(str(tmp_path), "second")
    with pytest.raises(StaleGeneration, match="opened again since"):
        check_owner(str(tmp_path), "first")


def test_a_lease_is_there_until_it_is_dropped(tmp_path: Path) -> None:
    lease = Lease(3, "127.0.0.1:5", 77, "first")
    assert read_lease(tmp_path) is None
    write_lease(tmp_path, lease)
    assert read_lease(tmp_path) == lease
    end_lease(tmp_path, 3)
    end_lease(tmp_path, 3)
    assert read_lease(tmp_path) is None


def test_an_obituary_is_of_one_generation(tmp_path: Path) -> None:
    assert read_obituary(tmp_path, 3) is None
    error = ProcessorTimeout("too long", operator="speed")
    write_obituary(tmp_path, 3, error)
    assert str(read_obituary(tmp_path, 3)) == str(error)
    assert read_obituary(tmp_path, 4) is None


def test_a_failure_is_known_until_the_host_starts(tmp_path: Path) -> None:
    assert read_failure(tmp_path) is None
    write_failure(tmp_path, CORRUPT)
    assert str(read_failure(tmp_path)) == str(CORRUPT)
    drop_failure(tmp_path)
    drop_failure(tmp_path)
    assert read_failure(tmp_path) is None


def no_room(*_: Any, **__: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_cannot_be_written_names_the_file_and_leaves_the_old_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_owner(str(tmp_path), "first")
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(CheckpointUnusable, match=r"owner\.json: No space left on device.*Make room"):
        write_owner(str(tmp_path), "second")
    check_owner(str(tmp_path), "first")
    assert [path.name for path in tmp_path.iterdir()] == ["owner.json"]


def test_a_failure_that_cannot_be_written_does_not_hide_the_failure_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "fsync", no_room)
    write_failure(tmp_path, CORRUPT)
    assert read_failure(tmp_path) is None

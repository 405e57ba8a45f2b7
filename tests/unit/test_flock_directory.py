"""The checkpoint directory of a flock: what is remembered there, and which directories are refused with which words."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from godwit.errors import (
    BadInput,
    CheckpointCorrupt,
    CheckpointMismatch,
    CheckpointUnusable,
    CheckpointVersion,
    DefinitionError,
)
from godwit.runtime.processor.spec import OperatorSpec
from godwit.spark.checkpoint import flock_directory
from godwit.spark.checkpoint.flock_directory import FORMAT, FlockDirectory, checked_path, replace_json
from godwit.spark.checkpoint.run_admission import Binding

SPEC = OperatorSpec("speed", "Mean", "row", pa.schema({"car": pa.string()}), pa.schema({"mean": pa.float64()}), ())


def opened(path: Path, hosts: int = 2, groups: int = 8) -> FlockDirectory:
    return FlockDirectory.open(path, hosts, groups)


def test_a_new_directory_becomes_a_home_and_is_found_again(tmp_path: Path) -> None:
    made = opened(tmp_path / "deep" / "ck")
    assert made.routing.hosts == ("host-0", "host-1")
    assert len(made.routing.owners) == 8
    assert opened(tmp_path / "deep" / "ck") == made


def test_two_homes_are_two_flocks(tmp_path: Path) -> None:
    assert opened(tmp_path / "a").flock != opened(tmp_path / "b").flock


def test_opening_leaves_nothing_but_the_description(tmp_path: Path) -> None:
    opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["flock.json"]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/data/ck", "/data/ck"),
        ("file:///data/ck", "/data/ck"),
        (Path("/data/ck"), "/data/ck"),
        ("file:/data/ck", "/data/ck"),
    ],
)
def test_paths_and_file_addresses_are_taken(given: Any, path: str) -> None:
    assert checked_path(given) == Path(path)


def test_a_relative_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked_path("ck") == tmp_path / "ck"


@pytest.mark.parametrize("given", ["s3a://bucket/ck", "hdfs://name/ck", "dbfs:/ck"])
def test_other_file_systems_are_refused_by_name(given: str) -> None:
    with pytest.raises(CheckpointUnusable, match=f"'{given}' is not on a file system whose files hosts can append to"):
        checked_path(given)


@pytest.mark.parametrize("given", [None, 5, "", b"/data/ck"])
def test_what_is_no_path_is_refused(given: Any) -> None:
    with pytest.raises(DefinitionError, match=r"checkpoint=.* is not a path"):
        checked_path(given)


def test_a_path_under_a_regular_file_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointUnusable, match=r"file/ck cannot be written: Not a directory\. Give a directory"):
        opened(tmp_path / "file" / "ck")


def failing_with(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("code", "said"),
    [(errno.ENOSPC, "is full.*Free some space"), (errno.EROFS, "cannot be written: Read-only file system")],
)
def test_a_directory_that_takes_nothing_is_unusable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, said: str
) -> None:
    monkeypatch.setattr(Path, "write_bytes", failing_with(code))
    with pytest.raises(CheckpointUnusable, match=said):
        opened(tmp_path)


def test_a_description_that_cannot_be_written_is_unusable_and_leaves_no_half(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = opened(tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    monkeypatch.setattr(flock_directory.os, "fsync", failing_with(errno.ENOSPC))
    with pytest.raises(CheckpointUnusable, match=r"flock\.json.*No space left"):
        replace_json(directory.path / "flock.json", {"format": 1})
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    monkeypatch.undo()
    assert opened(tmp_path) == directory


def test_a_directory_of_something_else_is_refused_and_untouched(tmp_path: Path) -> None:
    for name in ("commits", "metadata", "offsets", "sources"):
        (tmp_path / name).mkdir()
    with pytest.raises(
        CheckpointMismatch,
        match=r"not the checkpoint of a flock \(it has commits, metadata, offsets\).*checkpointLocation",
    ):
        opened(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["commits", "metadata", "offsets", "sources"]


def test_a_full_directory_can_be_used_once_there_is_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_bytes = Path.write_bytes

    def half(path: Path, data: bytes) -> int:
        write_bytes(path, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", half)
        with pytest.raises(CheckpointUnusable, match="is full"):
            opened(tmp_path)
    assert list(tmp_path.iterdir()) == []
    opened(tmp_path)


def test_what_a_killed_opening_left_behind_is_not_in_the_way(tmp_path: Path) -> None:
    for name in (".probe-0123abcd", "flock.json.0123abcd.tmp"):
        (tmp_path / name).write_text("half")
    assert opened(tmp_path) == opened(tmp_path)


def test_hosts_are_those_it_has_whatever_number_is_asked_for(tmp_path: Path) -> None:
    """A flock that is opened with another number of hosts opens with those there are, and scales."""
    opened(tmp_path, hosts=3)
    assert opened(tmp_path, hosts=2).roster() == ("host-0", "host-1", "host-2")


def test_other_groups_are_refused_and_the_right_number_is_told(tmp_path: Path) -> None:
    opened(tmp_path, groups=8)
    with pytest.raises(CheckpointMismatch, match=r"has 8 groups, and 16 were given\. Open it with groups=8"):
        opened(tmp_path, groups=16)


def test_a_newer_format_is_refused_before_anything_else_of_it_is_read(tmp_path: Path) -> None:
    replace_json(tmp_path / "flock.json", {"format": FORMAT + 1, "unheard": "of"})
    with pytest.raises(
        CheckpointVersion,
        match=rf"format {FORMAT + 1}, and this version reads up to {FORMAT}\. Use the version of Godwit",
    ):
        opened(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"flock"',
        "{}",
        '{"format": 1}',
        '{"format": "one", "flock": "x", "routing": {}}',
        '{"format": 1, "flock": "x", "routing": {}}',
    ],
)
def test_a_damaged_description_is_corrupt(tmp_path: Path, text: str) -> None:
    (tmp_path / "flock.json").write_text(text)
    with pytest.raises(CheckpointCorrupt, match=r"flock\.json.*Restore the checkpoint from a copy"):
        opened(tmp_path)


def test_a_description_that_is_not_a_file_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "flock.json").mkdir()
    with pytest.raises(BadInput, match=r"flock\.json.*Is a directory"):
        opened(tmp_path)


def test_an_operator_is_remembered_with_its_query(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    assert directory.operator("speed") is None
    directory.write_operator(SPEC, None)
    assert directory.operator("speed") == (SPEC, None)
    directory.write_operator(SPEC, Binding("q", "/spark/ck"))
    directory.write_operator(replace(SPEC, timeout_s=5.0), None)
    assert opened(tmp_path).operator("speed") == (replace(SPEC, timeout_s=5.0), Binding("q", "/spark/ck"))


def test_initial_state_stays_taken_up(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    assert not directory.initialised("speed")
    directory.write_operator(SPEC, None, initialised=True)
    directory.write_operator(SPEC, Binding("q", "/spark/ck"))
    assert opened(tmp_path).initialised("speed")


def test_a_damaged_operator_is_corrupt_and_named(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.write_operator(SPEC, None)
    path = tmp_path / "operators" / "speed.json"
    for damaged in ("{", "[]", json.dumps({"spec": {"name": "speed"}})):
        path.write_text(damaged)
        with pytest.raises(CheckpointCorrupt, match=r"operators/speed\.json"):
            directory.operator("speed")


def test_an_operator_that_begins_anew_is_not_bound_and_its_state_counts_as_there_until_all_have_dropped_it(
    tmp_path: Path,
) -> None:
    directory = opened(tmp_path)
    directory.write_operator(SPEC, Binding("q", "/spark/ck"), initialised=True)
    directory.begin_anew(replace(SPEC, life=1))
    assert directory.operator("speed") == (replace(SPEC, life=1), None)
    assert directory.dropping("speed")
    assert not directory.initialised("speed")
    directory.write_operator(replace(SPEC, life=1), None)
    assert not directory.dropping("speed")


@pytest.mark.parametrize(
    ("location", "temporary"),
    [
        ("file:/tmp/temporary-0d3f8e3e-2b7f-4b0a-9f4e-3a9d1c2b4e5f", True),
        ("/tmp/temporary-0d3f8e3e-2b7f-4b0a-9f4e-3a9d1c2b4e5f/", True),
        ("/data/temporary-state", False),
        ("/tmp/temporary-0d3f8e3e-2b7f-4b0a-9f4e-3a9d1c2b4e5f/mine", False),
    ],
)
def test_a_checkpoint_that_spark_has_made_is_known_by_its_name(location: str, temporary: bool) -> None:
    assert Binding("q", location).temporary is temporary

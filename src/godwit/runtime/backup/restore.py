"""A host whose directory is lost gets it back from its backup, or does not start. A host never starts with an empty directory.

The newest record decides which of the two happens. This module must not know why the directory is lost.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from godwit.errors import CheckpointCorrupt, StaleGeneration
from godwit.runtime.backup.records import Record, Records, mirror_directory
from godwit.runtime.liveness.leases import host_directory
from godwit.state.damage import unusable
from godwit.state.fencing import claim
from godwit.state.mirroring import copy_mirror, has_log
from godwit.state.segments import FileName, list_names, replace_file, sync_directory


def restore_if_lost(checkpoint: str, host: str) -> bool:
    """Restore the host's log if it is lost; whether it was. After a crash in between, the next call starts the restore again.

    First comes the record, so that no other process can decide; then the claim, after which the peer acknowledges nothing to a
    process that may still be writing; then the files, which contain all that the peer has ever acknowledged.
    """
    directory = host_directory(checkpoint, host)
    records = Records(checkpoint, host)
    newest = records.newest()
    if newest is None:
        return False
    if has_log(directory):
        _check_age(directory, newest)
        return False
    if newest.state == "none" or newest.peer is None:
        raise _gone(directory, f"it has had no complete backup since {newest.at}")
    mirror = mirror_directory(checkpoint, newest.peer, host)
    if not has_log(mirror):
        raise _gone(directory, f"so is its backup on {newest.peer}")
    mine = records.next(newest, "restored", newest.peer, newest.generation)
    generation = claim(mirror)
    for unfinished in directory.parent.glob(f"{host}.restored-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    new = directory.with_name(f"{host}.restored-{mine.number}")
    copy_mirror(mirror, new)
    replace_file(new / str(FileName("claim", generation)), b"")  # the next generation is newer than all before
    _check_newest(records, mine)
    _put_in_place(new, directory)
    return True


def _gone(directory: Path, why: str) -> CheckpointCorrupt:
    todo = "Bring the disk of this host back, or start a new flock from a copy (start_from=)"
    return _refused(directory, f"is gone, and {why}", todo)


def _refused(directory: Path, flaw: str, todo: str) -> CheckpointCorrupt:
    what = f"the directory of {directory.name} {flaw}"
    return CheckpointCorrupt(what, todo=todo, host=directory.name, directory=str(directory))


def _check_age(directory: Path, newest: Record) -> None:
    """A disk that was away may come back after the host has gone on elsewhere, from its backup."""
    generation = max(name.generation for name in list_names(directory))
    if generation < newest.generation:
        raise _refused(
            directory,
            f"is of generation {generation}, but the host has already reached generation {newest.generation}",
            "Put the newer directory back; to go back to the older one on purpose, remove the host's records in backups/",
        )


def _check_newest(records: Records, mine: Record) -> None:
    if records.newest() != mine:
        raise StaleGeneration(
            "another process restores this host too", todo="Nothing is to be done: the other process goes on"
        )


def _put_in_place(new: Path, directory: Path) -> None:
    """By one rename where no directory exists. Into an existing directory (a new disk, for example) the manifest goes last."""
    try:
        if directory.is_symlink() and not directory.exists():
            directory.unlink()  # a link to a disk that is gone
        if not directory.exists():
            new.rename(directory)
        else:
            _move_into(new, directory)
        sync_directory(directory.parent)
    except OSError as error:
        raise unusable("create", directory, error) from error


def _move_into(new: Path, directory: Path) -> None:
    for name in list_names(directory):  # left by a log whose manifest is lost, or by an unfinished restore
        (directory / str(name)).unlink(missing_ok=True)
    manifests = [name for name in list_names(new) if name.kind == "manifest"]
    for name in list_names(new):
        if name not in manifests:
            shutil.copyfile(new / str(name), directory / str(name))
    for name in manifests:
        replace_file(directory / str(name), (new / str(name)).read_bytes())
    shutil.rmtree(new)

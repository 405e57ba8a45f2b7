"""A host whose directory is gone gets it back from its backup, or it does not start: never does it start empty.

Decides which of the two it is, by the newest record. It must not know why the directory is gone.
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


def restored(checkpoint: str, host: str) -> bool:
    """Whether the host's log was gone and has been put back. A crash on the way leaves it to the next one to do it again.

    First the record, so that nobody else can decide; then the claim, after which the peer acknowledges nothing to a process
    that may still be writing; then the files, which hold all that was ever acknowledged.
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
        raise _gone(directory, f"there was no backup of it that is complete, since {newest.at}")
    mirror = mirror_directory(checkpoint, newest.peer, host)
    if not has_log(mirror):
        raise _gone(directory, f"so is the backup of it that {newest.peer} kept")
    mine = records.next(newest, "restored", newest.peer, newest.generation)
    generation = claim(mirror)
    for left in directory.parent.glob(f"{host}.restored-*"):
        shutil.rmtree(left, ignore_errors=True)  # of an attempt that did not end
    new = directory.with_name(f"{host}.restored-{mine.number}")
    copy_mirror(mirror, new)
    replace_file(new / str(FileName("claim", generation)), b"")  # whoever opens it takes a newer one than anybody had
    _check_newest(records, mine)
    _put_in_place(new, directory)
    return True


def _gone(directory: Path, why: str) -> CheckpointCorrupt:
    todo = "Bring its disk back, or start a new flock from a copy (start_from=)"
    return _refused(directory, f"is gone, and {why}", todo)


def _refused(directory: Path, flaw: str, todo: str) -> CheckpointCorrupt:
    what = f"the directory of {directory.name} {flaw}"
    return CheckpointCorrupt(what, todo=todo, host=directory.name, directory=str(directory))


def _check_age(directory: Path, newest: Record) -> None:
    """A disk that was away may come back when the host has gone on elsewhere."""
    generation = max(name.generation for name in list_names(directory))
    if generation < newest.generation:
        raise _refused(
            directory,
            f"is of generation {generation}, but the host has been at {newest.generation}",
            "Put the newer directory back; if going back is meant, remove the host's records in backups/",
        )


def _check_newest(records: Records, mine: Record) -> None:
    if records.newest() != mine:
        raise StaleGeneration("somebody else restores this host too", todo="Nothing: the other one goes on")


def _put_in_place(new: Path, directory: Path) -> None:
    """At once where nothing stands in the way; where there is a directory (a new disk, say), the manifest comes last."""
    try:
        if directory.is_symlink() and not directory.exists():
            directory.unlink()  # it led to a disk that is gone
        if not directory.exists():
            new.rename(directory)
        else:
            _move_into(new, directory)
        sync_directory(directory.parent)
    except OSError as error:
        raise unusable("create", directory, error) from error


def _move_into(new: Path, directory: Path) -> None:
    for name in list_names(directory):  # the rest of a log whose manifest is gone, or of an attempt before this one
        (directory / str(name)).unlink(missing_ok=True)
    manifests = [name for name in list_names(new) if name.kind == "manifest"]
    for name in list_names(new):
        if name not in manifests:
            shutil.copyfile(new / str(name), directory / str(name))
    for name in manifests:
        replace_file(directory / str(name), (new / str(name)).read_bytes())
    shutil.rmtree(new)

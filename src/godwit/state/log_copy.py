"""A copy of a host's changelog, as a log of its own: what is written does not change any more, so it is linked, not copied.

Decides which files a copy consists of. The manifest comes last: without it a copy that was not finished is no log. Nothing may
be merged meanwhile, which is for the caller to see to.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from godwit.state.changelog import Changelog
from godwit.state.damage import unusable
from godwit.state.manifest import read_manifest, write_manifest
from godwit.state.segments import sync_directory


def copy_log(log: Changelog, to: Path) -> int:
    """All that has been written up to now; gives its bytes."""
    log.rotate()
    manifest = read_manifest(log.directory, log.generation)
    files = [*(log.directory / snapshot.file for snapshot in manifest.snapshots), *log.sealed()]
    try:
        to.mkdir(parents=True)
        for file in files:
            link(file, to / file.name)
        write_manifest(to, manifest)
        sync_directory(to)
        return sum(file.stat().st_size for file in files)
    except OSError as error:
        raise unusable("copy to", to, error) from error


def link(file: Path, to: Path) -> None:
    """Another name for the file; its bytes again on another file system, or where that has no links."""
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)

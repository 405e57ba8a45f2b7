"""Small files that are replaced whole: what they hold survives a power cut, and a reader sees the old one or the new one.

Decides how the content of a file is replaced. It must not know what the content means.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from godwit import ports
from godwit.state.damage import unusable
from godwit.state.segments import sync_directory

# What reading a file that is no document of its kind raises: not text, not JSON, no such field, a value of another type.
GARBLED: Final = (ValueError, LookupError, TypeError, AttributeError)


def replace_document(path: Path, content: str | bytes) -> None:
    """Durable when this returns, under its name and with all of its content."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            ports.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise unusable("write", path, error) from error


def make_directory(path: Path) -> None:
    """With its parents, as `mkdir -p`; the names of those that are new are durable when this returns."""
    try:
        path.mkdir()
    except FileNotFoundError:
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    sync_directory(path.parent)

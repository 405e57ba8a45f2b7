"""Whether a host has a complete backup: numbered records, of which only the newest is valid.

A record is created with all of its content under the next number, or not at all. Two processes may try to decide differently
about a backup: a host that goes on without its backup, and the process that restores the backup because the host is gone. Only
one of them can create the next record, and the other gets an error. The records are outside of the hosts' directories, because
they are needed when such a directory is lost.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from godwit.errors import StaleGeneration
from godwit.runtime.liveness.leases import host_directory
from godwit.state.damage import corrupt, unusable
from godwit.state.documents import GARBLED, make_directory
from godwit.state.segments import sync_directory

State = Literal["none", "kept", "restored"]
_RECORDS_MAX: Final = 4  # older records are only for people to read


@dataclass(frozen=True, slots=True)
class Record:
    """`none`: answered work may be in the host's own directory only. `kept`: all answered work is at the peer too.

    `restored`: the host's directory was lost and is being restored from the peer.
    """

    number: int
    state: State
    peer: str | None  # with `none`: the peer that may still have an old mirror
    generation: int
    at: str


class Records:
    def __init__(self, checkpoint: str, host: str) -> None:
        self._host = host
        self._directory = Path(checkpoint) / "backups" / host

    def newest(self) -> Record | None:
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def next(self, after: Record | None, state: State, peer: str | None, generation: int) -> Record:
        """Create the next record, durably; raise StaleGeneration if another process has created it."""
        number = 1 if after is None else after.number + 1
        record = Record(number, state, peer, generation, datetime.now(UTC).isoformat(timespec="milliseconds"))
        path = self._directory / f"{number}.json"
        temporary = self._directory / f"{number}.{secrets.token_hex(4)}.tmp"
        try:
            make_directory(self._directory)
            with temporary.open("w") as file:
                json.dump(asdict(record), file)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
            sync_directory(self._directory)
        except FileExistsError:
            raise self._overtaken(number) from None
        except OSError as error:
            raise unusable("write", path, error) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._trim(number)
        return record

    def end(self) -> None:
        """Record that there is no backup to restore any more, also if other processes create records at the same time."""
        while (newest := self.newest()) is not None and (newest.state, newest.peer) != ("none", None):
            with suppress(StaleGeneration):
                self.next(newest, "none", None, newest.generation)

    def _trim(self, number: int) -> None:
        numbers = self._numbers()
        if numbers[-1] > number:  # the number was free only because its record had been trimmed
            raise self._overtaken(number)
        for old in numbers[:-_RECORDS_MAX]:
            (self._directory / f"{old}.json").unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        try:
            names = [path.stem for path in self._directory.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unusable("list", self._directory, error) from error
        return sorted(int(name) for name in names if name.isdecimal())

    def _read(self, number: int) -> Record:
        path = self._directory / f"{number}.json"
        try:
            return Record(**json.loads(path.read_text()))
        except OSError as error:
            raise unusable("read", path, error) from error
        except GARBLED as error:
            raise corrupt(path, f"it is not a record of a backup ({error})") from error

    def _overtaken(self, number: int) -> StaleGeneration:
        return StaleGeneration(
            f"another process has decided about the backup of {self._host}: it has created record {number}",
            todo="Nothing is to be done: the other process goes on, this one stops",
            host=self._host,
        )


def mirror_directory(checkpoint: str, peer: str, host: str) -> Path:
    """The directory in which a peer keeps the backup of a host."""
    return backups_directory(host_directory(checkpoint, peer)) / host


def backups_directory(directory: Path) -> Path:
    return directory / "backups"

"""The write-ahead log of one host: frames in lsn order, made durable in groups.

Decides the order of frames, when a segment ends, and when a frame counts as written. It must not know what
parts mean (except that each new segment begins with the newest define and mark of every operator), nor how
segments are merged into snapshots: that goes on beside it and shares no lock with it.

Group commit: `append` only puts a frame in line. The first thread that wants its frame written becomes the
leader and writes all frames in line, for all threads; the others wait. Syncing works the same way, with
a leader of its own, so that frames can be written while the disk is busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Self

from godwit import ports
from godwit.errors import CheckpointCorrupt, CheckpointUnusable, GodwitError, InvariantBroken
from godwit.state.fencing import Fence
from godwit.state.frames import FILE_HEADER, Body, Draft, Info, Part
from godwit.state.manifest import Manifest, read_manifest
from godwit.state.mounts import mount_of
from godwit.state.recovery import Recovered, sealed_segments, take_over
from godwit.state.segments import Durability, FileName, FileWriter, sync_directory

__all__ = ["Changelog", "Durability", "Part", "Recovered"]

SEGMENT_BYTES_MAX: Final = 64 << 20
_LINE_BYTES_MAX: Final = 32 << 20  # more than this in line and the appender writes it itself: bounds memory


@dataclass(slots=True)
class _Run:
    """Frames in line for one segment."""

    seq: int
    buffers: list[Body] = field(default_factory=list)


class Written(NamedTuple):
    """How far the log has been written: the last frame, and where it ends."""

    lsn: int
    seq: int
    bytes: int


class Changelog:
    """Open for one process at a time: a newer generation fences this one. Safe to use from many threads.

    `backed_up`, if there is one, is called with the lsn of a frame that has been written (and whether it was to be durable).
    It returns when a backup has the frame, too.
    """

    def __init__(
        self,
        directory: Path,
        durability: Durability,
        manifest: Manifest,
        recovered: Recovered,
        segment_bytes_max: int,
    ) -> None:
        self.directory = directory
        self.durability = durability
        self.generation = manifest.generation
        self._fence = Fence(directory, manifest.generation)
        self._recovered = recovered
        self._standing = recovered.standing
        self._segment_bytes_max = segment_bytes_max
        self._changed = ports.condition(ports.lock())
        self._failure: GodwitError | None = None
        # Frames in line.
        self._next_lsn = recovered.next_lsn
        self._line: list[_Run] = []
        self._line_bytes = 0
        self._seq = 0
        self._seq_bytes = segment_bytes_max  # full: the first frame begins the first segment
        self._head_lsn = recovered.next_lsn - 1  # the frame that the segment begins with
        # Frames that are written.
        self._file: FileWriter | None = None
        self._file_seq = 0
        self._written_lsn = self._synced_lsn = recovered.next_lsn - 1
        self._written = Written(self._written_lsn, 0, 0)
        self._writing = self._syncing = False
        self.bytes_written = 0
        self.backed_up: Callable[[int, bool], None] | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        durability: Durability = "process",
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ) -> tuple[Self, Recovered]:
        """Take over the directory. Read `recovered.parts()` to the end before the first `append`.

        "process": what is flushed survives the process; "disk": what is synced survives the machine. On a network file
        system it is always "disk": the next generation may not see what is not synced there.
        """
        manifest, recovered = take_over(directory, durability)
        durability = mount_of(directory).durability(durability)
        return cls(directory, durability, manifest, recovered, segment_bytes_max), recovered

    @staticmethod
    def draft(parts: Iterable[tuple[Info, Body]]) -> Draft:
        """A frame that only has to be put in line. Errors in its parts are raised here."""
        return Draft(parts)

    def append(self, parts: Draft | Iterable[tuple[Info, Body]]) -> int:
        """Put a frame in line and say its lsn. Bodies must not change until it is flushed."""
        draft = parts if isinstance(parts, Draft) else Draft(parts)
        with self._changed:
            self._check()
            if self._seq_bytes + draft.size_bytes_max > self._segment_bytes_max:
                self._begin_segment()
            lsn = self._enqueue(draft)
            for part in draft.parts:
                self._standing.observe(part)
            full = self._line_bytes > _LINE_BYTES_MAX
        if full:
            self._flush(lsn)
        return lsn

    def flush(self, lsn: int) -> None:
        """Return when that frame and all before it are written: they survive this process."""
        self._flush(lsn)
        if self.backed_up is not None:
            self.backed_up(lsn, False)

    def _flush(self, lsn: int) -> None:
        with self._changed:
            while self._writing and self._written_lsn < lsn and self._failure is None:
                self._changed.wait()
            self._check()
            if self._written_lsn >= lsn:
                return
            self._writing = True
            line, last_lsn = self._line, self._next_lsn - 1
            self._line, self._line_bytes = [], 0
        try:
            self._write(line)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            with self._changed:
                self._writing = False
                if self._failure is None:
                    self._written_lsn = last_lsn
                    size = 0 if self._file is None else self._file.size_bytes
                    self._written = Written(last_lsn, self._file_seq, size)
                self._changed.notify_all()

    def write(self, lsn: int) -> None:
        """Return when that frame is in the file, whether or not a backup has it: so that no row has to write it."""
        self._flush(lsn)

    def sync(self, lsn: int) -> None:
        """Flush and, with durability "disk", return when the frame survives the machine too."""
        self._flush(lsn)
        if self.durability == "disk":
            self._sync(lsn)
        if self.backed_up is not None:
            self.backed_up(lsn, self.durability == "disk")

    def _sync(self, lsn: int) -> None:
        with self._changed:
            while self._syncing and self._synced_lsn < lsn and self._failure is None:
                self._changed.wait()
            self._check()
            if self._synced_lsn >= lsn:
                return
            self._syncing = True
            file, last_lsn = self._file, self._written_lsn
        try:
            if file is not None:
                file.sync()
            if self._fence.looks_are_cached:
                self._fence.check()  # others see a write when it is synced, so it counts only if none has come before that
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            with self._changed:
                self._syncing = False
                if self._failure is None:
                    self._synced_lsn = last_lsn
                self._changed.notify_all()

    def rotate(self) -> None:
        """Begin a new segment, if there is anything in this one: all before it can then be compacted."""
        with self._changed:
            self._check()
            if self._next_lsn - 1 > self._head_lsn:
                self._begin_segment()
            lsn = self._next_lsn - 1
        self._flush(lsn)

    def written(self) -> Written:
        """What is in the files; beyond that there may be more, of a write that goes on."""
        with self._changed:
            return self._written

    def sealed(self) -> list[Path]:
        """Segments ready for compaction, oldest first; none while recovered parts are still being read."""
        if not self._recovered.read_to_end:
            return []
        with self._changed:
            open_seq = self._file_seq
        try:
            manifest = read_manifest(self.directory, self.generation)
        except CheckpointCorrupt:
            self._fence.check()  # a newer generation removes the manifests of older ones
            raise
        return sealed_segments(self.directory, manifest, open_seq)

    def survived(self, generation: int, lsn: int) -> bool:
        """Whether that frame of that generation is in the log now."""
        starts = [*self._recovered.starts, (-1, self._next_lsn)]
        ends = {of: end for (of, _), (_, end) in pairwise(starts)}
        return lsn < ends.get(generation, 0)

    def fenced(self) -> bool:
        """Whether a newer generation exists: then nothing that this one writes counts."""
        return self._fence.down()

    def close(self) -> None:
        """Write the frames in line, unless the log has failed, and close the files."""
        try:
            if self._failure is None:
                self._flush(self._next_lsn - 1)
        finally:
            with self._changed:
                self._wait_idle()
                self._failure = self._failure or CheckpointUnusable("the changelog is closed")
                if self._file is not None:
                    self._file.close()
                    self._file = None

    def _enqueue(self, draft: Draft) -> int:
        lsn = self._next_lsn
        self._next_lsn += 1
        if not self._line or self._line[-1].seq != self._seq:
            self._line.append(_Run(self._seq))
        self._line[-1].buffers += draft.numbered(lsn)
        self._line_bytes += draft.size_bytes_max
        self._seq_bytes += draft.size_bytes_max
        return lsn

    def _begin_segment(self) -> None:
        """The newest parts are collected here, in line, so that they are those of all frames before this one."""
        if not self._recovered.read_to_end:
            raise InvariantBroken("the changelog was used before all recovered parts were read")
        self._seq += 1
        self._seq_bytes = len(FILE_HEADER)
        self._head_lsn = self._enqueue(Draft(self._standing.parts()))

    def _write(self, line: list[_Run]) -> None:
        for run in line:
            if run.seq != self._file_seq:
                self._next_file(run.seq)
            assert self._file is not None
            before = self._file.size_bytes
            self._file.write(run.buffers)
            self.bytes_written += self._file.size_bytes - before
        # Only now, after the write: see the rules in manifest.py.
        self._fence.check()

    def _next_file(self, seq: int) -> None:
        """Seal the segment and begin the next. Only the newest segment may ever be torn, hence the sync."""
        disk = self.durability == "disk"
        if self._file is not None and disk:
            self._file.sync()
        file = FileWriter(self.directory / str(FileName("log", self.generation, seq)))
        if disk:
            sync_directory(self.directory)
        with self._changed:
            while self._syncing:
                self._changed.wait()
            sealed, self._file, self._file_seq = self._file, file, seq
        if sealed is not None:
            sealed.close()

    def _wait_idle(self) -> None:
        while self._writing or self._syncing:
            self._changed.wait()

    @property
    def failure(self) -> GodwitError | None:
        """Why nothing can be written any more."""
        return self._failure

    def fail(self, error: GodwitError) -> None:
        """Write nothing from now on, because memory and log may differ."""
        self._fail(error)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _fail(self, error: BaseException) -> None:
        """After a failed write the content of the file is unknown: only a new generation can read it."""
        if not isinstance(error, GodwitError):
            error = CheckpointUnusable(f"writing the changelog was interrupted: {error!r}")
        with self._changed:
            self._failure = self._failure or error

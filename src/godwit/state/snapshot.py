"""Compaction: log segments become snapshots, small snapshots become larger ones, old files go.

Decides which files are merged with which and when the result takes their place. It must not know what parts
mean (compaction_merge.py) and never touches live state nor the segment being written, so that appends go on beside it.

The snapshots of a directory are a base and, on top of it, deltas. New segments become a delta; a delta that
is no larger than all newer ones together is merged with them, so that there are few; and when the deltas
have half the size of the base, all become a new base. So a row is written again only a logarithmic number of times.
Whatever step a crash interrupts, the manifest names a complete set of files, and the next sweep removes the
rest. A new snapshot is always synced before it replaces anything, whatever the durability of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from godwit import ports
from godwit.errors import GodwitError, InvariantBroken
from godwit.state.compaction_merge import CompactionMerge, FileParts, gather
from godwit.state.fencing import Fence
from godwit.state.frames import BLOCK_BYTES, Draft
from godwit.state.manifest import Manifest, Stored, read_manifest, sweep, write_manifest
from godwit.state.recovery import open_reader, size_bytes_of
from godwit.state.segments import FileName, FileWriter, list_names, parse_name, publish

ROUND_BYTES: Final = 128 << 20  # of segments merged at once: they are held in memory
SLICE_BYTES: Final = 4 << 20  # some 20 ms of work
_SNAPSHOTS_MAX: Final = 8  # while segments are caught up with: merging takes a slice of each into memory
_OUTLINE_BLOCK_BYTES: Final = 4 << 10  # headers are small and far apart


@dataclass(frozen=True, slots=True)
class _Input:
    """A file to merge: as much of it as counts, and whether it is a snapshot."""

    path: Path
    bytes: int | None
    snapshot: bool

    def open(self) -> FileParts:
        """Parts of a snapshot are read when they are needed, a segment as a whole."""
        block_bytes = _OUTLINE_BLOCK_BYTES if self.snapshot else BLOCK_BYTES
        return FileParts(open_reader(self.path, self.bytes, block_bytes=block_bytes), outline=self.snapshot)


class Compactor:
    """Compacts on behalf of one generation of a host.

    `on_step` is called after every step. `breathe` is called between small pieces of work: it may wait, for the sake of rows.
    """

    def __init__(
        self,
        generation: int,
        *,
        round_bytes: int = ROUND_BYTES,
        slice_bytes: int = SLICE_BYTES,
        on_step: Callable[[str], None] = lambda _: None,
        breathe: Callable[[], None] = lambda: None,
    ) -> None:
        self._generation = generation
        self._round_bytes = round_bytes
        self._slice_bytes = slice_bytes
        self._on_step = on_step
        self._breathe = breathe
        self._alone = ports.lock()

    def compact(self, directory: Path, sealed: Sequence[Path], settled: Mapping[str, int]) -> None:
        """Merge these segments, the oldest there are; of an operator, the batches up to its settled one."""
        fence = Fence(directory, self._generation)
        with self._alone:
            fence.check()
            try:
                for files in self._rounds(directory, sealed):
                    self._absorb(directory, files, settled)
                    self._consolidate(directory, settled, snapshots_max=_SNAPSHOTS_MAX)
                self._consolidate(directory, settled)
            except GodwitError:
                fence.check()  # a newer generation may have removed what is missing
                raise

    def _rounds(self, directory: Path, sealed: Sequence[Path]) -> Iterator[list[_Input]]:
        waiting: list[_Input] = []
        size = 0
        for file in _in_log_order(read_manifest(directory, self._generation), sealed):
            file_bytes = file.bytes or size_bytes_of(file.path)
            if waiting and size + file_bytes > self._round_bytes:
                yield waiting
                waiting, size = [], 0
            waiting.append(file)
            size += file_bytes
        if waiting:
            yield waiting

    def _absorb(self, directory: Path, files: Sequence[_Input], settled: Mapping[str, int]) -> None:
        manifest = read_manifest(directory, self._generation)
        stored = self._merge(directory, files, manifest.snapshots, settled)
        taken = {file.path.name for file in files}
        own = [name.seq for file in taken if (name := parse_name(file)) and name.generation == self._generation]
        self._put_in_place(
            directory,
            replace(
                manifest,
                snapshots=(*manifest.snapshots, stored),
                segments=tuple(segment for segment in manifest.segments if segment.file not in taken),
                own_from=max([manifest.own_from, *(seq + 1 for seq in own)]),
            ),
        )

    def _consolidate(self, directory: Path, settled: Mapping[str, int], snapshots_max: int = 1) -> None:
        manifest = read_manifest(directory, self._generation)
        begin = due([snapshot.bytes for snapshot in manifest.snapshots])
        if begin is None or len(manifest.snapshots) <= snapshots_max:
            return
        before, due_now = manifest.snapshots[:begin], manifest.snapshots[begin:]
        files = [_Input(directory / stored.file, stored.bytes, snapshot=True) for stored in due_now]
        stored = self._merge(directory, files, before, settled)
        self._put_in_place(directory, replace(manifest, snapshots=(*before, stored)))

    def _merge(
        self, directory: Path, files: Sequence[_Input], before: Sequence[Stored], settled: Mapping[str, int]
    ) -> Stored:
        """A new snapshot file that says what these files say; those before it stay as they are."""
        with ExitStack() as stack:
            shares = gather([stack.enter_context(file.open()) for file in files], self._breathe)
            earlier = [_Input(directory / stored.file, stored.bytes, snapshot=True) for stored in before]
            below = gather([stack.enter_context(file.open()) for file in earlier], self._breathe)
            merge = CompactionMerge(settled, below, self._slice_bytes)
            with self._new_snapshot(directory) as writer:
                for number, part in enumerate(merge.parts(shares), 1):
                    writer.write(Draft([part]).numbered(number))
                    self._on_step("part written")
                    self._breathe()
        path = writer.path.with_suffix("")
        publish(writer.path, path)
        self._on_step("snapshot named")
        return Stored(path.name, writer.size_bytes, tuple(sorted(shares)))

    @contextmanager
    def _new_snapshot(self, directory: Path) -> Iterator[FileWriter]:
        taken = [n.seq for n in list_names(directory) if n.kind == "snap" and n.generation == self._generation]
        name = FileName("snap", self._generation, max(taken, default=0) + 1, partial=True)
        writer = FileWriter(directory / str(name))
        try:
            yield writer
            writer.sync()
        except Exception:
            with suppress(OSError):
                writer.path.unlink(missing_ok=True)  # a full disk should not stay full because of it
            raise
        finally:
            writer.close()
        self._on_step("snapshot written")

    def _put_in_place(self, directory: Path, manifest: Manifest) -> None:
        write_manifest(directory, manifest)
        self._on_step("manifest replaced")
        sweep(directory, manifest)
        self._on_step("old files removed")


def due(sizes: Sequence[int]) -> int | None:
    """From which snapshot on all are to be merged, if any: 0 is the base."""
    if len(sizes) < 2:
        return None
    if 2 * sum(sizes[1:]) >= sizes[0]:
        return 0
    return next((at for at in range(1, len(sizes) - 1) if sizes[at] <= sum(sizes[at + 1 :])), None)


def _in_log_order(manifest: Manifest, sealed: Sequence[Path]) -> list[_Input]:
    """The given segments that were not merged yet; there must be none before them that was left out."""
    older = {segment.file: segment.bytes for segment in manifest.segments}
    inputs = []
    for path in sealed:
        name = parse_name(path.name)
        own = name is not None and name.generation == manifest.generation and name.seq >= manifest.own_from
        if path.name in older or own:
            inputs.append(_Input(path, older.get(path.name), snapshot=False))
    own_seqs = range(manifest.own_from, manifest.own_from + len(inputs))
    expected = [*older, *(str(FileName("log", manifest.generation, seq)) for seq in own_seqs)]
    if [file.path.name for file in inputs] != expected[: len(inputs)]:
        raise InvariantBroken("segments to be compacted are not the oldest", segments=[p.name for p in sealed])
    return inputs

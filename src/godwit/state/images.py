"""Before-images: the entries of one variable as they were when the last batch was committed, if they have changed since.

Decides where before-images are: in memory, or on disk when memory is short. They are written when entries change and seldom
read: for an export of committed state, or a hand-over of keys. On disk they have a store of their own, which is deleted as a
whole when the batch is committed. This module must not know what an image means, nor when there are too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

from godwit.state.keys import Key, KeyCodec
from godwit.state.spill import Spill

P = TypeVar("P")

IMAGE_BYTES: Final = 200  # a key's tuple, its values, a dictionary slot and the object headers, roughly
_NOTHING: Final = b"\x00"  # on disk: the key had no entry
_SOMETHING: Final = b"\x01"
SMALL_PART: Final = 4  # images of fewer keys than one in so many are added one by one
_WRITE_ROWS: Final = 10_000  # per transaction


@dataclass(frozen=True, slots=True)
class Form(Generic[P]):
    """The memory that an image takes beside its key, and its form on disk."""

    size: Callable[[P], int]
    pack: Callable[[P], bytes]
    unpack: Callable[[bytes], P]


class Images(Generic[P]):
    """Images by key; None for a key without an entry. If a failed spill left an image in both places, that in memory counts."""

    __slots__ = ("_disk", "_disk_count", "_extra_bytes", "_form", "_key_codec", "_memory", "_var")

    def __init__(self, var: int, form: Form[P], key_codec: KeyCodec) -> None:
        self._var = var
        self._form = form
        self._key_codec = key_codec
        self._memory: dict[Key, P | None] = {}
        self._extra_bytes = 0
        self._disk: Spill | None = None  # set once an image of this variable is there
        self._disk_count = 0

    def __len__(self) -> int:
        return len(self._memory) + max(self._disk_count, 0)

    def __contains__(self, key: object) -> bool:
        return key in self._memory or self._on_disk(key)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Key]:
        yield from self._memory
        if self._disk is not None:
            yield from (key for key, _ in self._spilled(self._disk))

    def __getitem__(self, key: Key) -> P | None:
        if key in self._memory:
            return self._memory[key]
        data = None if self._disk is None else self._disk.get(self._var, self._key_codec.pack(key))
        if data is None:
            raise KeyError(key)
        return self._image(data)

    def __setitem__(self, key: Key, image: P | None) -> None:
        self.update({key: image})

    def items(self) -> Iterator[tuple[Key, P | None]]:
        yield from self._memory.items()
        if self._disk is not None:
            for key, data in self._spilled(self._disk):
                yield key, self._image(data)

    def in_memory(self, key: Key) -> P | None:
        """The image, if it can still be added to: one on disk is complete."""
        return self._memory.get(key)

    def remember(self, key: Key, image: P | None) -> None:
        """Store the image of a key, unless the key has one."""
        if key not in self._memory and not self._on_disk(key):
            self._memory[key] = image
            if image is not None:
                self._extra_bytes += self._form.size(image)

    def remember_many(self, images: dict[Key, P | None], row_count: int, size_bytes: int) -> None:
        """Images of keys, which count for keys that have none yet, out of this many rows and bytes. May keep the dictionary."""
        row_count += len(self._memory)
        size_bytes += self._extra_bytes
        if self._disk is not None:
            images = {key: image for key, image in images.items() if not self._on_disk(key)}
        if len(images) * SMALL_PART < len(self._memory):  # seldom: someone reads images while rows come
            for key, image in images.items():
                self._memory.setdefault(key, image)
        else:
            images.update(self._memory)
            self._memory = images
        # A check of each key would take longer than everything else.
        self._extra_bytes = size_bytes * len(self._memory) // max(row_count, 1)

    def update(self, images: Mapping[Key, P | None]) -> None:
        """Replace the images of these keys."""
        self._forget_on_disk(images)
        self._memory.update(images)
        self._extra_bytes += sum(self._form.size(image) for image in images.values() if image is not None)

    def discard_many(self, keys: Iterable[Key]) -> None:
        gone = list(keys)
        self._forget_on_disk(gone)
        for key in gone:
            self._memory.pop(key, None)

    def grew(self, size_bytes: int) -> None:
        """Something was added to an image in memory."""
        self._extra_bytes += size_bytes

    @property
    def size_bytes(self) -> int:
        """The memory that the images take, roughly."""
        return len(self._memory) * IMAGE_BYTES + self._extra_bytes

    def spill(self, disk: Spill) -> None:
        """Move all images to disk; if the disk is full, as many as fit."""
        keys = iter(list(self._memory))
        while block := list(islice(keys, _WRITE_ROWS)):
            self._disk = disk
            disk.put_many(self._var, [(self._key_codec.pack(key), self._data(self._memory[key])) for key in block])
            self._disk_count += len(block)
            for key in block:
                del self._memory[key]
        self._extra_bytes = 0

    def _spilled(self, disk: Spill) -> Iterator[tuple[Key, bytes]]:
        images = ((self._key_codec.unpack(packed), data) for packed, data in disk.scan(self._var))
        return ((key, data) for key, data in images if key not in self._memory)

    def _on_disk(self, key: Key) -> bool:
        return self._disk is not None and self._disk.contains(self._var, self._key_codec.pack(key))

    def _forget_on_disk(self, keys: Iterable[Key]) -> None:
        there = [key for key in keys if self._on_disk(key)] if self._disk is not None else []
        if self._disk is not None and there:
            self._disk.delete_many(self._var, map(self._key_codec.pack, there))
            self._disk_count -= len(there)

    def _data(self, image: P | None) -> bytes:
        return _NOTHING if image is None else _SOMETHING + self._form.pack(image)

    def _image(self, data: bytes) -> P | None:
        return None if data == _NOTHING else self._form.unpack(data[1:])

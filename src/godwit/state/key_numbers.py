"""Numbers for keys: each key that a table meets gets the next number, and the table holds its entries in columns by number.

Keys of fixed width are found by an open-addressing hash table of numpy columns: a look-up of many keys is a few numpy calls,
and a key takes about 20 bytes. All other keys are found in a dictionary. This module must not know what a table holds. A number
is used again only when the table has all numbers made anew (`only`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.state.columns import Mask, grown
from godwit.state.keys import Key, KeyCodec, KeyColumns, Positions

Numbers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = list[npt.NDArray[np.int64]]  # one array for each key column

NO_NUMBER: Final = -1
_BITS_MIN: Final = 10
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 by the golden ratio: neighbours land far from each other
_HALF: Final = np.uint64(32)
_TUPLE_BYTES: Final = 200  # a key's tuple, its values, a dictionary slot and the object headers, roughly


class KeyNumbers(Protocol):
    def __len__(self) -> int:
        """How many numbers were given."""
        ...

    def find(self, keys: Sequence[Key]) -> Numbers:
        """The numbers of the keys, NO_NUMBER for a key that has none."""
        ...

    def add(self, keys: Sequence[Key]) -> Numbers:
        """Numbers for keys that have none yet; the keys are distinct."""
        ...

    def keys(self, numbers: Numbers) -> Sequence[Key]:
        """The keys with these numbers."""
        ...

    def only(self, numbers: Numbers) -> KeyNumbers:
        """New numbers for these keys, in this order, and none for others."""
        ...

    @property
    def key_bytes(self) -> int:
        """What the number of a key takes in memory, roughly."""
        ...


class NotFixed(Exception):
    """A key has no fixed width: one of its values is null."""


def numbers_for(codec: KeyCodec) -> KeyNumbers:
    """The faster of the two ways that fits these keys."""
    return FixedKeys(codec) if all(map(_is_fixed, codec.stored_schema.types)) else AnyKeys()


def _is_fixed(stored: Any) -> bool:
    return pa.types.is_boolean(stored) or pa.types.is_signed_integer(stored)


class AnyKeys:
    """Numbers by a dictionary."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys: list[Key] = list(keys)
        self._numbers = {key: number for number, key in enumerate(self._keys)}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, keys: Sequence[Key]) -> Numbers:
        return np.fromiter(map(self._numbers.get, keys, repeat(NO_NUMBER)), np.int64, len(keys))

    def add(self, keys: Sequence[Key]) -> Numbers:
        numbers = np.arange(len(self._keys), len(self._keys) + len(keys))
        self._keys += list(keys)  # first: after an interrupt here no key has these numbers
        self._numbers.update(zip(keys, numbers.tolist(), strict=True))
        return numbers

    def keys(self, numbers: Numbers) -> list[Key]:
        return list(map(self._keys.__getitem__, numbers.tolist()))

    def only(self, numbers: Numbers) -> AnyKeys:
        return AnyKeys(self.keys(numbers))

    @property
    def key_bytes(self) -> int:
        return _TUPLE_BYTES


class FixedKeys:
    """Numbers by a hash table of numpy columns. `_slots` has the number of a key at its hash, or at one of the next places.

    At most half of the slots are taken, so a key is found after one or two looks.
    """

    def __init__(self, codec: KeyCodec) -> None:
        self._codec = codec
        self._all_int64 = all(map(pa.types.is_int64, codec.stored_schema.types))
        self._count = 0
        self._words: Words = [np.empty(0, np.int64) for _ in codec.stored_schema]  # by number
        self._slots = np.full(1 << _BITS_MIN, NO_NUMBER, np.int32)

    def __len__(self) -> int:
        return self._count

    def find(self, keys: Sequence[Key]) -> Numbers:
        try:
            words = self._words_of(keys)
        except NotFixed:
            return self._find_some(keys)
        return self._find(words)

    def add(self, keys: Sequence[Key]) -> Numbers:
        """Raises NotFixed if a key has a null."""
        return self._add(self._words_of(keys))

    def keys(self, numbers: Numbers) -> KeyColumns:
        return self._as_keys([column[numbers] for column in self._words])

    def only(self, numbers: Numbers) -> FixedKeys:
        fewer = FixedKeys(self._codec)
        fewer._add([column[numbers] for column in self._words])
        return fewer

    @property
    def key_bytes(self) -> int:
        return 8 * len(self._words) + 3 * self._slots.itemsize  # two to four slots

    def _find_some(self, keys: Sequence[Key]) -> Numbers:
        """Keys with a null have no number here."""
        whole = np.flatnonzero([None not in key for key in keys])
        numbers = np.full(len(keys), NO_NUMBER, np.int64)
        if len(whole):
            numbers[whole] = self._find(self._words_of([keys[at] for at in whole.tolist()]))
        return numbers

    def _find(self, words: Words) -> Numbers:
        places = _places(words, len(self._slots))
        numbers = self._slots[places]
        left = self._other(numbers, words).nonzero()[0]
        last = len(self._slots) - 1
        while len(left):
            places = (places if len(places) == len(left) else places[left]) + 1 & last
            looked = self._slots[places]
            numbers[left] = looked
            differs = self._other(looked, [column[left] for column in words]).nonzero()[0]
            left, places = left[differs], places[differs]
        return numbers.astype(np.int64)

    def _other(self, numbers: npt.NDArray[np.int32], words: Words) -> Mask:
        """Where the slot has the number of another key, or a number that no key has."""
        if not self._count:
            return numbers >= 0
        other: Mask = (self._words[0][numbers] != words[0]) | (numbers >= self._count)
        for mine, given in zip(self._words[1:], words[1:], strict=True):
            other |= mine[numbers] != given
        other &= numbers >= 0
        return other

    def _add(self, words: Words) -> Numbers:
        """The count changes last: after an interrupt before that, slots have numbers that no key has, see `_other`."""
        first, count = self._count, self._count + len(words[0])
        self._words = [grown(column, count) for column in self._words]
        for column, given in zip(self._words, words, strict=True):
            column[first:count] = given
        if 2 * count > len(self._slots):
            slots = np.full(1 << max(_BITS_MIN, (2 * count - 1).bit_length()), NO_NUMBER, np.int32)
            _fill(slots, np.arange(count), [column[:count] for column in self._words])
            self._slots = slots
        else:
            _fill(self._slots, np.arange(first, count), words)
        self._count = count
        return np.arange(first, count)

    def _words_of(self, keys: Sequence[Key]) -> Words:
        if isinstance(keys, KeyColumns):
            return [_words(column) for column in keys.columns]
        try:
            return [np.array(column, np.int64) for column in zip(*keys, strict=True)] or self._no_words()
        except TypeError:
            raise NotFixed from None

    def _no_words(self) -> Words:
        return [np.empty(0, np.int64) for _ in self._words]

    def _as_keys(self, words: Words) -> KeyColumns:
        columns: list[pa.Array[Any]] = [pa.array(column) for column in words]
        if not self._all_int64:
            types = self._codec.stored_schema.types
            columns = [column.cast(t) for column, t in zip(columns, types, strict=True)]
        return KeyColumns(self._codec, columns)


def _fill(slots: npt.NDArray[np.int32], numbers: Numbers, words: Words) -> None:
    """Give each number the first free slot from its hash on. Of several that want the same slot one gets it."""
    places, last = _places(words, len(slots)), len(slots) - 1
    while len(numbers):
        free = slots[places] < 0
        slots[places[free]] = numbers[free]
        without = slots[places] != numbers
        numbers, places = numbers[without], places[without] + 1 & last


def _places(words: Words, slot_count: int) -> Positions:
    """Where the search for a key begins: `slot_count` is a power of two."""
    mixed = _mixed(words[0].view(np.uint64))
    for column in words[1:]:
        mixed = _mixed(mixed ^ column.view(np.uint64))
    return (mixed >> np.uint64(65 - slot_count.bit_length())).astype(np.int64)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed: npt.NDArray[np.uint64] = (words ^ (words >> _HALF)) * _MIX
    return mixed


def _words(column: pa.Array[Any]) -> npt.NDArray[np.int64]:
    if column.null_count:
        raise NotFixed
    wide = column if pa.types.is_int64(column.type) else column.cast(pa.int64())
    words: npt.NDArray[np.int64] = wide.to_numpy(zero_copy_only=False)
    return words

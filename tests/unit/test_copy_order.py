"""In which order keys are copied, and what of keys that come meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from godwit import ports
from godwit.runtime.handover.forwarding import Forwarder, KeysInOrder

KEYS = [(key,) for key in range(40)]


def hash_of(key: tuple[int]) -> int:
    """Some keys have the same hash; some hashes are negative."""
    return key[0] // 2 * 7919 % 101 - 50


def forwarder() -> Forwarder:
    shared: Any = SimpleNamespace(instance=None)
    return Forwarder(shared, ports.queue(), 0, lambda hashes: np.ones(len(hashes), np.bool_), "rows", check=False)


def known(keys: list[tuple[int]]) -> KeysInOrder:
    return KeysInOrder.of(list(keys), np.array([hash_of(key) for key in keys], np.int64))


def test_keys_are_copied_once_by_hash_and_keys_of_a_hash_together() -> None:
    copying = forwarder()
    copying.begin(known(KEYS), set(KEYS))
    slices = []
    while part := copying.next_slice(3):
        slices.append(part)
    assert sorted(key for part in slices for key in part) == KEYS
    hashes = [hash_of(key) for part in slices for key in part]
    assert hashes == sorted(hashes)
    assert all({hash_of(key) for key in part}.isdisjoint({hash_of(key) for key in slices[0]}) for part in slices[1:])
    assert copying.complete


def test_a_key_that_comes_while_the_others_are_put_in_order_is_copied_once() -> None:
    copying = forwarder()
    copying.add_key(KEYS[5], hash_of(KEYS[5]))  # among those that are put in order, too
    copying.add_key((99,), 1_000)
    copying.begin(known(KEYS), set(KEYS))
    copied = copying.next_slice(1_000)
    assert sorted(copied) == [*KEYS, (99,)]
    assert copying.keys == {*KEYS, (99,)}


def test_a_key_behind_the_frontier_is_left_to_forwarding_and_one_ahead_is_copied() -> None:
    copying = forwarder()
    copying.begin(known(KEYS), set(KEYS))
    at = hash_of(copying.next_slice(1)[-1])
    copying.add_key((100,), at)
    copying.add_key((101,), at + 1)
    rest = copying.next_slice(1_000)
    assert (101,) in rest
    assert (100,) not in rest
    assert {(100,), (101,)} <= copying.keys
    assert not copying.next_slice(1)

"""Which keys a host has refused on a stream, so that it goes on refusing them until the router has caught up.

A router sends several chunks ahead. Were a key that is refused in one of them to come back before the next is read, the later
rows would be applied before the earlier ones, which are on their way round. So a refusal stands until the router says, with
a later chunk, that it has dealt with the answer in which it was told. Chunks that carry rows round again are not bound by it.
"""

from __future__ import annotations

from collections.abc import Iterable


class Refusals:
    def __init__(self) -> None:
        self._in_answer: dict[int, int] = {}  # routing hash -> number of the answer that refused it last

    def __bool__(self) -> bool:
        return bool(self._in_answer)

    def __contains__(self, route_hash: int) -> bool:
        return route_hash in self._in_answer

    def add(self, answer: int, hashes: Iterable[int]) -> None:
        self._in_answer.update(dict.fromkeys(hashes, answer))

    def dealt_with(self, answer: int) -> None:
        """The router has seen to everything that was refused up to this answer."""
        if self._in_answer:
            self._in_answer = {key: at for key, at in self._in_answer.items() if at > answer}

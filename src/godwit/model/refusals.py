"""Which keys a host has refused on a stream, so that it goes on refusing them until the router has handled the refusal.

A router sends several chunks without waiting for answers. Suppose that a host refuses a key in one chunk and owns the key again
before it reads the next chunk: it would apply the later rows before the earlier ones, which the router has still to send
again. So a refusal holds until the router says, with a later chunk, that it has handled the answer with the refusal. Chunks in
which the router sends refused rows again are exempt.
"""

from __future__ import annotations

from collections.abc import Iterable


class Refusals:
    def __init__(self) -> None:
        self._in_answer: dict[int, int] = {}  # routing hash -> number of the last answer that refused it

    def __bool__(self) -> bool:
        return bool(self._in_answer)

    def __contains__(self, route_hash: int) -> bool:
        return route_hash in self._in_answer

    def add(self, answer: int, hashes: Iterable[int]) -> None:
        self._in_answer.update(dict.fromkeys(hashes, answer))

    def dealt_with(self, answer: int) -> None:
        """The router has handled every refusal up to this answer."""
        if self._in_answer:
            self._in_answer = {key: at for key, at in self._in_answer.items() if at > answer}

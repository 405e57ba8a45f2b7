"""Which chunks of rows a host works on right now. Knows nothing of what is in them, nor of who gives way to them."""

from __future__ import annotations

from godwit import ports


class ChunksInside:
    """The chunks of rows that this process works on, from their arrival to their answer. Work that can wait gives way to them.

    Chunks come and go without a lock: each step is one operation of a list, which Python does not divide.
    """

    def __init__(self) -> None:
        self.entered = 0  # how many chunks have come: may miss some, because threads count without a lock
        self._inside: list[None] = []
        self._waiting: list[ports.Event] = []

    def enter(self) -> None:
        self.entered += 1
        self._inside.append(None)

    def leave(self) -> None:
        self._inside.pop()
        if self._waiting and not self._inside:
            for event in list(self._waiting):
                event.set()

    def wait_none(self, at_most_s: float) -> bool:
        """Wait until there is no chunk, at most so long; returns whether there is none."""
        if not self._inside:
            return True
        event = ports.event()
        self._waiting.append(event)
        try:
            return not self._inside or event.wait(at_most_s)
        finally:
            self._waiting.remove(event)

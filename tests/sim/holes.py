"""The known holes of published systems (and some of our own making), each behind a switch of the simulator.

A switch makes the simulated host, router or disk do the wrong thing; the machines under test stay as they are. What finds
the hole is an invariant, within a number of seeds that is small enough to be run each time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hole:
    """`found_by`: the invariants of which one or another is broken first; `seeds`: within how many, from `first` on.

    The rare ones need about a thousand seeds from anywhere; `first` spares every test run the way there.
    """

    switches: frozenset[str]
    about: str
    found_by: frozenset[str]
    seeds: int
    protocol: str | None = None
    first: int = 0

    @property
    def name(self) -> str:
        return ", ".join(sorted(self.switches))


def _hole(switches: str, about: str, found_by: str, seeds: int, protocol: str | None = None, first: int = 0) -> Hole:
    return Hole(frozenset(switches.split(", ")), about, frozenset(found_by.split()), seeds, protocol, first)


HOLES = (
    _hole(
        "new route at once",
        "the target applies a later row before the origin has drained earlier ones (fetch on demand, as published)",
        "I3",
        60,
    ),
    _hole(
        "forget when shipped",
        "a unit in flight is lost with a crash: the origin forgets it when it ships",
        "I2 I4 I5",
        60,
    ),
    _hole(
        "copy and replay",
        "state is shipped as of the start cut, and rows from before it are replayed as well: they count twice",
        "I2 I5",
        150,
        "live",
    ),
    _hole("end overtakes", "the end marker is not in order with what is forwarded before it", "I2 I5", 60, "live"),
    _hole("forwarding ends early", "the dual route is taken away before the end cut", "I2 I5", 60, "live"),
    _hole("serve before all came", "the restore does not wait for the copy: a timer starts the target", "I1 I2 I5", 60),
    _hole("ledger stays", "duplicates are told apart by what does not travel with the key", "I2", 60),
    _hole("a lost connection serves", "the target decides by a timeout that it owns what it has prepared", "I1", 200),
    _hole(
        "a lost connection drops, forget when released",
        "the target decides by a timeout that it owns nothing, and the origin has forgotten it already",
        "I2 I5",
        60,
    ),
    _hole("still applies", "the old owner is not fenced: it goes on after it has let go", "I1 I6", 60),
    _hole(
        "release before durable",
        "the target is told before the record is durable: a restarted origin owns again",
        "I1",
        100,
    ),
    _hole(
        "served is taken in again", "a restarted target takes a step that it has served for a new one", "I1 I2 I5", 150
    ),
    _hole("answer before durable", "outputs leave before what they come from is durable", "I2 I5", 100),
    _hole(
        "two hand-overs at once",
        "a target takes part in a second hand-over of a unit before the first is resolved",
        "I1 I2 I5 I6",
        100,
        first=330,
    ),
    _hole(
        "resend at once",
        "after a break later windows go again while an earlier row is still on its way round",
        "I3",
        100,
        "fetch",
        first=200,
    ),
    _hole(
        "declined waits for a router",
        "an origin that is a batch behind its target waits for a router, which waits for the rows that the target holds",
        "I6",
        50,
        first=200,
    ),
    _hole("heirs wait to be told", "an heir that has prepared relies on the driver, which is gone", "I6", 40, first=60),
    _hole("a will for one", "the will is written before all heirs have prepared", "I1 I2 I5 I6", 40, first=40),
)

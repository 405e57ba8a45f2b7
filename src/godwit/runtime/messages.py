"""Every message that travels between processes, by who speaks to whom.

One class per message, so that both sides agree on its fields and a reader finds all of them in one place. How a message becomes
bytes is in `transport/typed.py`; what a message means is decided by the module that handles it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from godwit.errors import GodwitError
from godwit.model.progress import Progress
from godwit.model.units import Units
from godwit.transport.typed import Epochs, Message

# -- router to host and back -----------------------------------------------------------------------------------------

# -- origin to target and back ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenMigration(Message):
    """The header of the stream from an origin to a target."""

    migration: str
    operator: str
    origin: str
    generation: int  # of the origin
    kept: bool = False  # whether the protocol keeps copies up to date until a hand-over is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class FromOrigin(Message):
    """`written`: how far the origin's changelog was durable when the message was sent: generation and lsn. Standby only."""

    written: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Hello(FromOrigin):
    """The first message in each direction."""


@dataclass(frozen=True, slots=True)
class Bye(FromOrigin):
    """The origin sends nothing more on this stream."""


@dataclass(frozen=True, slots=True)
class OfferUnits(FromOrigin):
    """The units will come later: the target holds their rows from now on."""

    units: Units


@dataclass(frozen=True, slots=True)
class AnnounceStep(FromOrigin):
    """State of the step comes next. `epochs`: in which the target will own it. `apart`: keys apart from the step's groups."""

    step: int
    units: Units
    apart: tuple[int, ...]
    epochs: Epochs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepState(FromOrigin):
    """The body is state of some keys."""

    step: int


@dataclass(frozen=True, slots=True)
class StepBackup(FromOrigin):
    """The target reads the state of the step from the origin's changelog, up to the lsn."""

    step: int
    directory: str
    lsn: int


@dataclass(frozen=True, slots=True)
class StepChanges(FromOrigin):
    """The body is changes of keys that were copied before. `settled`: the batch in progress does not undo them."""

    step: int
    progress: Progress
    settled: bool = False


@dataclass(frozen=True, slots=True)
class StepRows(FromOrigin):
    """The body is rows that the origin has applied: the target replays them.

    `times`: processing time, watermark and lateness limit. `fingerprint`: what the rows did at the origin, if it is checked.
    """

    step: int
    lane: str
    progress: Progress
    times: tuple[int, int, int]
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class StateBeforeBatch(FromOrigin):
    """The body is what keys held before the batch in progress."""

    step: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class StepLedger(FromOrigin):
    """The body is one ledger entry of the batch in progress; `entry` is its header, as in the changelog."""

    step: int
    progress: Progress
    entry: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CopyMarker(FromOrigin):
    """The whole step has been copied, in this batch; so many rows had been forwarded when the marker was sent."""

    step: int
    rows: int
    batch: int


@dataclass(frozen=True, slots=True)
class OriginProgress(FromOrigin):
    """How far the origin is, where the copies of its keys are at the target already."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class StepEnd(FromOrigin):
    """The target has all of the step now. `epochs`: in which the origin owns it, or owned it until it released it.

    `apart`: keys apart from the step's groups, with owner and epoch. `mark`: the origin's batch, watermark and timers.
    """

    step: int
    units: Units
    epochs: Epochs
    apart: tuple[tuple[int, str, int], ...]
    mark: dict[str, Any]
    released: bool = False  # whether the origin has released the step already
    lost: bool = False  # whether the origin is a lost host's changelog


@dataclass(frozen=True, slots=True)
class StepReleased(FromOrigin):
    """The step is the target's. `epochs`: in which the target owns it."""

    step: int
    epochs: Epochs


@dataclass(frozen=True, slots=True)
class StepAborted(FromOrigin):
    """The step stays with the origin."""

    step: int
    units: Units = field(default_factory=Units)


@dataclass(frozen=True, slots=True)
class UnitsExpected(Message):
    """The target holds rows of these units: the origin may send their rows to it."""

    units: Units


@dataclass(frozen=True, slots=True)
class UnitsWanted(Message):
    """Rows of these units wait at the target."""

    units: Units


@dataclass(frozen=True, slots=True)
class StepPrepared(Message):
    """All of the step is durable at the target."""

    step: int


@dataclass(frozen=True, slots=True)
class StepDeclined(Message):
    """The target cannot take the step in this batch."""

    step: int


@dataclass(frozen=True, slots=True)
class StepMissing(Message):
    """The step was released, and the target does not have all of it."""

    step: int


@dataclass(frozen=True, slots=True)
class StepServed(Message):
    """The target owns the step, durably."""

    step: int


@dataclass(frozen=True, slots=True)
class MarkerReached(Message):
    """The target has come to a `CopyMarker`; `rows` is the marker's."""

    step: int
    rows: int


@dataclass(frozen=True, slots=True)
class TargetFailed(Message):
    """The target cannot go on, for a reason that somebody must know."""

    error: GodwitError


FROM_ORIGIN: Final = (
    Hello,
    Bye,
    OfferUnits,
    AnnounceStep,
    StepState,
    StepBackup,
    StepChanges,
    StepRows,
    StateBeforeBatch,
    StepLedger,
    CopyMarker,
    OriginProgress,
    StepEnd,
    StepReleased,
    StepAborted,
)
FROM_TARGET: Final = (
    Hello,
    UnitsExpected,
    UnitsWanted,
    StepPrepared,
    StepDeclined,
    StepMissing,
    StepServed,
    MarkerReached,
    TargetFailed,
)


# -- driver to host and back -----------------------------------------------------------------------------------------

# -- host to driver and back -----------------------------------------------------------------------------------------

# -- host to host: backups -------------------------------------------------------------------------------------------

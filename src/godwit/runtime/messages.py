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
from godwit.transport.typed import Done, Epochs, Message, Request

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

# -- driver to host and back: migrations -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartMigration(Request[Done]):
    """Give units to a target, step by step.

    `source`: where the target has the state from, live or backup. `check`: compare what replayed rows do on both hosts.
    `code`: the protocol itself, pickled, where it does not come with the package.
    """

    id: str
    operator: str
    target: str
    protocol: str
    steps: tuple[Units, ...]
    side_by_side: int | None = None
    rate_bytes_per_s: float | None = None
    gap_ms: float = 0.0
    source: str = "live"
    check: bool = False
    code: bytes | None = None


@dataclass(frozen=True, slots=True)
class MigrationReport(Message):
    """`state`: running, ended, or unknown: the origin has restarted since. `waits`: [milliseconds, rows]."""

    id: str
    state: str
    protocol: str = ""
    target: str = ""
    steps: int = 0
    done: int = 0
    dropped: int = 0
    reason: str = ""
    keys: int = 0
    keys_total: int = 0
    bytes: int = 0
    rows_forwarded: int = 0
    bytes_forwarded: int = 0
    rows_applied: int = 0
    waits: list[list[float]] = field(default_factory=list)
    phases: list[list[Any]] = field(default_factory=list)  # [name, milliseconds since the beginning]
    moved: Epochs = field(default_factory=dict)
    began_ms: int = 0
    ended_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReportMigration(Request[MigrationReport]):
    """How a migration stands, at once or after something has changed."""

    id: str
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AbortMigration(Request[Done]):
    id: str
    reason: str = "aborted"


@dataclass(frozen=True, slots=True)
class HandOverStandby(Request[Done]):
    """The copies of a standby take over now."""

    id: str


@dataclass(frozen=True, slots=True)
class StepOutcome(Message):
    """Of a step at its origin: released, kept, or open."""

    outcome: str


@dataclass(frozen=True, slots=True)
class ReportOutcome(Request[StepOutcome]):
    operator: str
    step: str  # migration and number


@dataclass(frozen=True, slots=True)
class OwnershipReport(Message):
    ownership: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ReportOwnership(Request[OwnershipReport]):
    operator: str


@dataclass(frozen=True, slots=True)
class WaitsReport(Message):
    """[milliseconds, rows] of rows that waited."""

    waits: list[list[float]]


@dataclass(frozen=True, slots=True)
class ReportWaits(Request[WaitsReport]):
    operator: str
    since_ms: float


@dataclass(frozen=True, slots=True)
class LoadReport(Message):
    """`groups`: by group, [rows, keys, bytes]. `hot`: [routing hash, rows, key] of the keys that had most rows."""

    groups: dict[str, list[float]]
    hot: list[list[Any]]


@dataclass(frozen=True, slots=True)
class ReportLoad(Request[LoadReport]):
    operator: str


@dataclass(frozen=True, slots=True)
class PrepareTakeover(Request[Done]):
    """Take over units of a lost host from its changelog. `timers`: by operator, the heir that answers for fired timers."""

    name: str
    lost: str
    shares: dict[str, Units]
    timers: dict[str, str]
    generation: int
    next_lsn: int


@dataclass(frozen=True, slots=True)
class TakeoverReport(Message):
    """`state`: reading, prepared, served, failed or given up. `by_copies`: whether copies of a standby were used."""

    state: str
    failure: GodwitError | None = None
    bytes: int = 0
    by_copies: bool = False
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReportTakeover(Request[TakeoverReport]):
    name: str
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class UnitsServed(Message):
    """By operator, the units that the heir owns now, with their epochs."""

    served: dict[str, Epochs]


@dataclass(frozen=True, slots=True)
class CompleteTakeover(Request[UnitsServed]):
    """The will is written: the heir owns its share."""

    name: str


@dataclass(frozen=True, slots=True)
class AbandonTakeover(Request[Done]):
    """The lost host is started again instead."""

    name: str


# -- host to driver and back -----------------------------------------------------------------------------------------

# -- host to host: backups -------------------------------------------------------------------------------------------

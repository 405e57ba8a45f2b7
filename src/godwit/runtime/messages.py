"""Every message that travels between processes, by who speaks to whom.

One class per message, so that both sides agree on its fields and a reader finds all of them in one place. How a message becomes
bytes is in `transport/typed.py`; what a message means is decided by the module that handles it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from godwit.errors import GodwitError
from godwit.model.progress import BatchRef, Progress
from godwit.model.routing import Routing
from godwit.model.units import Units
from godwit.runtime.processor.spec import Operator, OperatorSpec
from godwit.transport.typed import Done, Epochs, Message, Request

# -- router to host and back -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenLane(Message):
    """The first message of a stream: a lane of a batch begins at this host.

    `scope`: the evaluation of a batch DataFrame; None for a streaming query. `carries`: the lane has rows or a tick, so the
    outputs of timers may leave through it. `answered`: the greatest lsn that each generation of the host has answered this
    attempt of the lane before. `definition`: the definition of the operator that the router belongs to. `batch_ms`: Spark's
    time of the batch, the same at all hosts and in every run; None if the lane does not know it.
    """

    operator: str
    query: str
    run: str
    batch: int
    lane: str
    scope: str | None = None
    carries: bool = True
    answered: tuple[tuple[int, int], ...] = ()
    definition: str = ""
    batch_ms: int | None = None

    @property
    def request(self) -> BatchRef:
        return BatchRef(self.query, self.run, self.batch)


@dataclass(frozen=True, slots=True)
class LaneOpened(Message):
    """How the host has begun the batch, with the outputs of its timers as Arrow data.

    `lsn`: where in the changelog of this generation all of it is. `merge`: how rows of hot keys are merged in this batch.
    `late_us`: rows with an event time up to here may be late. `before`: the batch that the host had before this one.
    `firings`: name and number of output rows of each firing of timers, in the order of the Arrow data.
    """

    lsn: int
    generation: int
    merge: tuple[tuple[str, str], ...] = ()
    late_us: int | None = None
    before: int | None = None
    firings: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ApplyRows(Message):
    """Rows of a lane, as Arrow data.

    `seen`: how many answers on this stream the router has dealt with completely. `again`: the rows were refused elsewhere.
    """

    lane: str
    seen: int = 0
    again: bool = False


class OwnerHint(NamedTuple):
    """Who owns a unit, as far as a host knows. `unit`: the number of a group, or the routing hash of a key apart."""

    unit: int
    host: str | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class RefusedRows(Message):
    """Numbers of the rows whose keys the host does not own, ascending, with hints who does."""

    rows: list[int]
    groups: tuple[OwnerHint, ...] = ()
    keys: tuple[OwnerHint, ...] = ()


@dataclass(frozen=True, slots=True)
class RowsApplied(Message):
    """The answer to `ApplyRows`, with the outputs as Arrow data; what was applied is in the changelog at `lsn`."""

    lsn: int
    refused: RefusedRows | None = None


@dataclass(frozen=True, slots=True)
class FireTimers(Message):
    """Timers fire: if lanes are made by key, those of the lane's keys, because all rows of the lane are applied at all hosts.

    `in_real_time`: all timers that are due now, and rows of the lane go on. `event_max_ms`: the greatest event time of the lane
    so far. `known`: the number of the last firing of each host that the router has the outputs of.
    """

    in_real_time: bool = False
    event_max_ms: int | None = None
    known: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TimersFired(Message):
    """The answer to `FireTimers`, with the outputs as Arrow data.

    `lsn`, `firings`: as in `LaneOpened`. `ask_also`: steps by which keys have left before their timers had fired here, each
    with the host to which they have left.
    """

    lsn: int
    firings: tuple[tuple[str, int], ...] = ()
    ask_also: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FinishLane(Message):
    """The last message of a stream: the host is to make all work of the lane durable.

    `rows`: of the whole lane; None if the lane is made of columns. `applied_rows`: how many of them this host has applied.
    `answered`: the greatest lsn that each generation of the host has answered. `hosts`: all that the router has opened.
    """

    rows: int | None
    event_max_ms: int | None
    applied_rows: int
    answered: tuple[tuple[int, int], ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaneFinished(Message):
    """All is durable. `further_hosts` have joined since, and the router has to finish the lane there too."""

    further_hosts: tuple[str, ...] = ()


# -- origin to target and back ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenMigration(Message):
    """The header of the stream from an origin to a target."""

    migration: str
    operator: str
    origin: str
    generation: int  # of the origin
    standby: bool = False  # whether the copies are kept up to date until a hand-over is requested


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
    """State of the step comes next. `epochs`: in which the target will own it. `apart`: keys apart from the step's groups.

    `ahead`: the origin applies rows of the step meanwhile, so nobody waits for the state.
    """

    step: int
    units: Units
    apart: tuple[int, ...]
    epochs: Epochs = field(default_factory=dict)
    ahead: bool = False


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
class SliceEnd(FromOrigin):
    """A slice of a copy has been sent. The target answers when it has taken up all that came before."""

    step: int


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
class SliceTaken(Message):
    """The target has come to a `SliceEnd`, after so much work. `crowded`: chunks of rows never left it alone meanwhile."""

    step: int
    took_ms: float
    crowded: bool


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
    SliceEnd,
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
    SliceTaken,
    TargetFailed,
)


# -- driver to host and back -----------------------------------------------------------------------------------------

# -- driver to host and back: operators and hosts --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OperatorDefinition(Message):
    """An operator as hosts take it. `routing`: the first owners, for a host that has no record of the operator.

    `initial`: by host, the rows from which every evaluation of a batch DataFrame starts. `definition`: identifies the call
    that defined the operator.
    """

    spec: OperatorSpec
    adapter: bytes = field(repr=False)
    initial: dict[str, bytes] = field(default_factory=dict, repr=False)
    routing: Routing | None = None
    definition: str = ""

    @classmethod
    def of(cls, operator: Operator, routing: Routing | None = None) -> Self:
        return cls(operator.spec, operator.adapter, dict(operator.initial), routing, operator.definition)

    def operator_at(self, host: str) -> Operator:
        """With the initial rows of this host only."""
        rows = {name: rows for name, rows in self.initial.items() if name == host}
        return Operator(self.spec, self.adapter, rows, definition=self.definition)


@dataclass(frozen=True, slots=True)
class Define(Request[Done]):
    """Take up an operator's code."""

    operator: OperatorDefinition


@dataclass(frozen=True, slots=True)
class HostReport(Message):
    """What `flock.status()` shows of a host. `instances`, `storage` and `backup` are documents for people."""

    host: str
    generation: int
    pid: int
    load_s: float
    uptime_s: float
    upkeep_error: str | None
    storage: dict[str, Any]
    backup: dict[str, Any]
    instances: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class GetStatus(Request[HostReport]):
    pass


@dataclass(frozen=True, slots=True)
class TimersDue(Message):
    due: bool


@dataclass(frozen=True, slots=True)
class CheckTimers(Request[TimersDue]):
    """Whether a timer of the operator is due at `at_ms`, by the clock of the driver, which gives batches their time."""

    operator: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class KeysKnown(Message):
    """Whether the host has state of each key, in the order of the request."""

    known: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class CheckKeys(Request[KeysKnown]):
    """Whether the host has state of these packed keys."""

    operator: str
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LettersCleared(Message):
    count: int


@dataclass(frozen=True, slots=True)
class ClearLetters(Request[LettersCleared]):
    """Forget the dead letters of an operator."""

    operator: str


@dataclass(frozen=True, slots=True)
class ProgressMarks(Message):
    """How far each operator has come at a host: its mark, in the form of the changelog."""

    marks: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class GetMarks(Request[ProgressMarks]):
    pass


@dataclass(frozen=True, slots=True)
class AdoptMarks(Request[Done]):
    """A host that has joined takes over the progress of the others, before the first router comes."""

    marks: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SetRoster(Request[Done]):
    """The hosts that the flock has now."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HoldBatches(Request[Done]):
    """Begin no further batch; or, with `hold` false, go on."""

    hold: bool


@dataclass(frozen=True, slots=True)
class LogCopied(Message):
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CopyLog(Request[LogCopied]):
    """Copy the changelog to another directory."""

    directory: str


@dataclass(frozen=True, slots=True)
class TidyBackups(Request[Done]):
    """Remove backups of hosts that have another peer now, or have left. Hosts send this to each other too."""


@dataclass(frozen=True, slots=True)
class Stop(Request[Done]):
    """End the host."""


# -- reader of state to host and back --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchState(Message):
    """All committed state of an operator. `committed_batch`: the newest batch that Spark has committed."""

    operator: str
    committed_batch: int


@dataclass(frozen=True, slots=True)
class StateOwnership(Message):
    """In the metadata of the fetched schema: what the host owned at that moment; None if keys of the operator never move."""

    ownership: dict[str, Any] | None = None


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


@dataclass(frozen=True, slots=True)
class Register(Request[Done]):
    """A host serves from now on. `restored`: its directory was lost, and came back from its backup."""

    host: str
    generation: int
    address: str
    pid: int
    load_s: float
    restored: bool = False


@dataclass(frozen=True, slots=True)
class ReportFailure(Request[Done]):
    """A host has ended with an error. `generation` is 0 if the host had not opened its changelog yet."""

    host: str
    generation: int
    error: GodwitError


@dataclass(frozen=True, slots=True)
class ReportTaskError(Request[Done]):
    """A task of a query has ended with an error."""

    error: GodwitError


@dataclass(frozen=True, slots=True)
class TakenOver(Message):
    taken_over: bool


@dataclass(frozen=True, slots=True)
class CheckTakenOver(Request[TakenOver]):
    """A host that Spark starts again asks whether other hosts have taken over its keys."""

    host: str


@dataclass(frozen=True, slots=True)
class OperatorDefinitions(Message):
    operators: tuple[OperatorDefinition, ...]


@dataclass(frozen=True, slots=True)
class GetDefinitions(Request[OperatorDefinitions]):
    pass


@dataclass(frozen=True, slots=True)
class RunAdmitted(Message):
    """The run may work. `asynchronous`: Spark tracks its progress asynchronously."""

    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class SparkWatermark(Message):
    """Up to when timers of the batch fire, and up to when its rows are late."""

    eviction_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True)
class GetWatermark(Request[SparkWatermark]):
    """Spark's watermark at the input of the operator, in the batch that runs now."""

    operator: str
    query: str
    run: str
    batch: int


@dataclass(frozen=True, slots=True)
class WatermarkMoved(Message):
    moved: bool


@dataclass(frozen=True, slots=True)
class CheckWatermark(Request[WatermarkMoved]):
    """Whether Spark's watermark of the next batch is later than that of the operator's last batch."""

    operator: str


@dataclass(frozen=True, slots=True)
class NoteCommitted(Request[Done]):
    """Spark's commit log names this batch of this run, so no row of it comes again."""

    operator: str
    run: str
    batch: int


@dataclass(frozen=True, slots=True)
class Admit(Request[RunAdmitted]):
    """May this run of a query work? Answered with an error if not.

    `last_batch`: the newest batch of the operator at this host. `fresh`: the host has no state of the operator. `lasting`: the
    host has rows of several batches that the run may read again.
    """

    operator: str
    query: str
    run: str
    batch: int
    last_batch: int
    fresh: bool
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class ActiveScopes(Message):
    """The evaluations of batch DataFrames that have not ended."""

    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GetActiveScopes(Request[ActiveScopes]):
    pass


@dataclass(frozen=True, slots=True)
class BackupPeer(Message):
    """The host that keeps the backup; None if there is none."""

    peer: str | None


@dataclass(frozen=True, slots=True)
class GetBackupPeer(Request[BackupPeer]):
    host: str


# -- waiting task to driver and back ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotTaken(Message):
    """`taken`: a host gets the slot, so the task must end."""

    taken: bool


@dataclass(frozen=True, slots=True)
class OfferSlot(Request[SlotTaken]):
    """A Spark task waits for a host, and a host may have its slot. `attempt`: Spark's id of the task attempt."""

    attempt: int


# -- host to host: backups -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ping(Request[Done]):
    """Asks only whether the process answers."""


@dataclass(frozen=True, slots=True)
class OpenBackup(Message):
    """The first message of a stream: the origin sends its changelog to its peer."""

    origin: str
    generation: int


@dataclass(frozen=True, slots=True)
class BackupOpened(Message):
    """`files`: the files of the backup that the peer has, with their sizes."""

    files: dict[str, int]


@dataclass(frozen=True, slots=True)
class WriteBackup(Message):
    """Bytes of a file of the changelog, as Arrow data. `ahead`: the manifest does not count them yet."""

    file: str
    offset: int
    ahead: bool
    sync: bool = False


@dataclass(frozen=True, slots=True)
class ReplaceManifest(Message):
    """The new manifest of the changelog, as Arrow data."""

    sync: bool = False


@dataclass(frozen=True, slots=True)
class ClearBackup(Message):
    """Remove all files: they do not fit the origin's changelog."""


@dataclass(frozen=True, slots=True)
class SyncBackup(Message):
    """Only to be acknowledged; with `sync`, all bytes must be on disk first."""

    sync: bool = False


@dataclass(frozen=True, slots=True)
class BackupAcknowledged(Message):
    """The peer has written what the message before asked for."""

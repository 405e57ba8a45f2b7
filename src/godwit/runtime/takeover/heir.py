"""Takes over keys of a lost host, on one of the hosts that are left: a hand-over whose origin is a changelog.

The changelog of the lost host becomes the messages that a living origin would send, for the same receiver: copies, the ledger
of the batch in progress and the commit point are as in every migration. One thing differs: the record `released` is replaced by
the will, which the driver writes when all heirs have prepared. If this host has complete copies of a standby, only the parts of
the changelog after the copies are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa

from godwit import ports
from godwit.errors import Bug, GodwitError, HostUnavailable
from godwit.model.ownership import Ownership
from godwit.model.progress import Progress
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.chunk import chunk_bytes
from godwit.runtime.chunk.ownership_columns import selects
from godwit.runtime.durable.changelog_parts import ledger_part, life_of
from godwit.runtime.handover.receiver import Receiver
from godwit.runtime.host_services import HostServices
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.shared_instance import SharedInstance
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.liveness.wills import batch_lost, migration_name
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.changes import changes_schema
from godwit.state.frames import Part
from godwit.state.keyed_state import KeyedState
from godwit.state.keys import KeyCodec
from godwit.state.recovery import Recovered, taken_over_log
from godwit.transport import typed

STEP = 0  # a takeover is one step
MessageAndBody = tuple[messages.FromOrigin, Any]  # the body is None if the message has none


class ReceiverAnswers:
    """Takes the answers of a receiver in place of an origin."""

    def __init__(self) -> None:
        self._answers: ports.Queue[typed.Message] = ports.queue()

    def write_metadata(self, data: bytes) -> None:
        self._answers.put(typed.unpack(data, *messages.FROM_TARGET))

    def last(self) -> typed.Message | None:
        """The newest answer since the last call."""
        answer = None
        while not self._answers.empty():
            answer = self._answers.get()
        return answer

    def expect(self, kind: type[typed.Message]) -> None:
        """Raise unless the newest answer is of this kind. A receiver answers before `take` returns."""
        answer = self.last()
        if not isinstance(answer, kind):
            answered = "nothing" if answer is None else answer.kind
            raise HostUnavailable(
                f"the keys cannot be taken over in this batch: {answered} was answered, not {kind.kind}"
            )


class LostOperator:
    """One operator in the changelog of a lost host: state goes to the receiver at once, ledger and mark at the end."""

    def __init__(self, lost: str, operator: str, units: Units, timers: bool, newest: Mapping[str, Part]) -> None:
        spec = OperatorSpec.from_dict(newest["define"].info["spec"])
        codec = KeyCodec(spec.key_schema, spec.tz)
        self.operator = operator
        self.units = units
        self.instance = Instance(operator, spec, KeyedState(spec.layout, codec), codec)
        self.ownership = Ownership.from_dict(lost, newest["own"].info["own"])
        mark = newest.get("mark")  # none before the first batch
        self.progress = Progress() if mark is None else Progress.from_dict(mark.info["progress"])
        self.joined = mark is None or bool(mark.info.get("joined"))
        self.since = -1  # parts of the log of earlier batches are in the copies already
        self._timers = timers
        self._select = selects(units, self.ownership)
        self._schema = changes_schema(codec)
        self._life, self._reads_it = spec.life, True

    def messages_of(self, part: Part) -> Iterator[MessageAndBody]:
        """The messages that a part of the log becomes; none if it has no state of these units, or of an earlier life."""
        info, instance = part.info, self.instance
        if info["kind"] == "define":
            self._reads_it = life_of(info) == self._life
        if not self._reads_it:
            return
        match info["kind"]:
            case "mark":
                instance.recovery.mark(info)
            case "ledger":
                instance.recovery.ledger(info, memoryview(part.body))
            case "state" | "committed" if info["batch"] >= self.since:
                batch = -1 if "slice" in info or info.get("settled") else info["batch"]
                rows = pa.ipc.read_record_batch(pa.py_buffer(part.body), self._schema)
                mine = chunk_bytes.select_changes(rows, instance.key_codec, self._select)
                if len(mine):
                    kind = messages.StepChanges if info["kind"] == "state" else messages.StateBeforeBatch
                    yield kind(STEP, replace(self.progress, batch=batch)), mine.serialize()

    def end(self) -> Iterator[MessageAndBody]:
        """The last messages: the ledger of the batch in progress, and the end of the step."""
        instance, ownership = self.instance, self.ownership
        entries = chain(instance.ledger.of(self._select), instance.ledger.timers() if self._timers else ())
        for lane, entry in entries:  # one at a time, because the ledger may be large
            info, body = ledger_part(instance.memory, lane, entry)
            yield messages.StepLedger(STEP, instance.progress, info), body
        epochs = {unit: ownership.share(unit).epoch for unit in self.units}
        mark, _ = instance.mark_part()
        apart = tuple((key, *owner) for key, owner in ownership.apart(self.units).items())
        yield messages.StepEnd(STEP, self.units, epochs, apart, mark, lost=True), None

    def released(self) -> messages.StepReleased:
        return messages.StepReleased(STEP, self.epochs())

    def epochs(self) -> typed.Epochs:
        """The epochs in which the heir owns the units."""
        return {unit: self.ownership.share(unit).epoch + 1 for unit in self.units}

    def begin(self) -> Iterator[MessageAndBody]:
        yield messages.AnnounceStep(STEP, self.units, tuple(self.ownership.apart(self.units))), None
        yield messages.OriginProgress(self.progress), None


class Heir:
    """One takeover on one host, in its own thread. `receiver_of`: a receiver, with the copies of a standby if it has any."""

    def __init__(
        self,
        services: HostServices,
        request: messages.PrepareTakeover,
        instance_of: Callable[[str], SharedInstance],
        receiver_of: Callable[[str, str, SharedInstance, Units], Receiver],
    ) -> None:
        self.name = request.name
        self.lost = request.lost
        self.state = "reading"
        self.failure: GodwitError | None = None
        self.began_s = ports.now_s()
        self.changed = ports.condition()
        self._services = services
        self._request = request
        self._shares = request.shares
        self._instances = {operator: instance_of(operator) for operator in self._shares}
        self._receivers = {
            operator: receiver_of(migration_name(self.name, operator), self.lost, self._instances[operator], units)
            for operator, units in self._shares.items()
        }
        self._bytes = 0
        self._by_copies = False
        self._answers = {operator: ReceiverAnswers() for operator in self._instances}
        self._operators: dict[str, LostOperator] = {}
        self._pause_batches(True)
        self._ending = False
        self._thread = ports.thread(self._run, f"godwit-heir-{self.name}")
        self._thread.start()

    # -- reading -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._take_over()
            self._enter("prepared")
            for receiver in self._receivers.values():
                receiver.ask_outcome(STEP)  # the driver may be lost before it completes or abandons the takeover
        except Exception as error:  # noqa: BLE001 the driver must hear of it, and start the host instead
            failure = error if isinstance(error, GodwitError) else Bug(f"{type(error).__name__}: {error}")
            self.failure = failure.at(host=self._services.host)
            with suppress(GodwitError):  # the log cannot be written: this host ends too
                self._drop()
            self._enter("failed")
        finally:
            self._pause_batches(False)  # prepared units delay new batches by themselves

    def _take_over(self) -> None:
        request = self._request
        if self._services.crash_markers is not None:  # a row may have ended the lost host, and this host gets it next
            self._services.crash_markers.inherit(host_directory(self._services.checkpoint, self.lost))
        left = taken_over_log(
            host_directory(self._services.checkpoint, self.lost), request.generation, request.next_lsn
        )
        newest: dict[str, dict[str, Part]] = {}
        for part in left.newest_parts():
            newest.setdefault(part.info["op"], {})[part.info["kind"]] = part
        for operator, units in self._shares.items():
            timers = request.timers.get(operator) == self._services.host
            lost = LostOperator(self.lost, operator, units, timers, newest[operator])
            self._check_committed(operator, lost)
            self._operators[operator] = lost
            self._receivers[operator].answers.start(self._answers[operator])
        for part in self._parts(left):
            operator = str(part.info.get("op"))
            if operator in self._operators:
                self._give(self._operators[operator], self._operators[operator].messages_of(part))
        for operator, lost in self._operators.items():
            self._give(lost, lost.end())
            self._answers[operator].expect(messages.StepPrepared)

    def _check_committed(self, operator: str, lost: LostOperator) -> None:
        """A batch that was committed here was committed at the lost host too. If its log lacks that batch, its end is lost."""
        before = self._instances[operator].instance.batch.completed_before
        if before is not None and not lost.joined and lost.progress.batch < before:
            raise batch_lost(self.lost, operator, lost.progress.batch, before)

    def _parts(self, left: Recovered) -> Iterator[Part]:
        """The parts of the log to read: if all copies are complete, those after the copies; else all.

        If the log has lost its end with the machine, copies may be ahead of it: they have rows that no ledger knows, so they
        are not used.
        """
        copied_up_to = {operator: receiver.copied_up_to for operator, receiver in self._receivers.items()}
        ends = left.ends()
        known = all(_survived(receiver.handover.written, ends) for receiver in self._receivers.values())
        # Rows that outlast their batch are in the ledger parts of earlier batches.
        known = known and not any(lost.progress.lasting for lost in self._operators.values())
        if known and all(batch is not None and self._whole(operator) for operator, batch in copied_up_to.items()):
            tail = left.tail({operator: batch for operator, batch in copied_up_to.items() if batch is not None})
            if tail is not None:
                self._by_copies = True
                for operator, lost in self._operators.items():
                    lost.since = copied_up_to[operator] or 0
                    self._give(lost, [(messages.OriginProgress(lost.progress), None)])
                return tail
        for operator, lost in self._operators.items():
            self._receivers[operator].drop_taken_over()
            self._give(lost, lost.begin())
        return left.parts()

    def _whole(self, operator: str) -> bool:
        """Whether copies can be reverted to the start of the lost host's batch, if a later run begins that batch anew."""
        return self._receivers[operator].copied_before(self._operators[operator].progress.batch)

    def _give(self, lost: LostOperator, given: Iterable[MessageAndBody]) -> None:
        for message, body in given:
            if self._ending or self._services.stopping():
                raise HostUnavailable("the lost host is started again instead")
            self._bytes += 0 if body is None else len(body)
            self._receivers[lost.operator].take(message, body)

    def _enter(self, state: str) -> None:
        with self.changed:
            self.state = state
            self.changed.notify_all()

    def _pause_batches(self, paused: bool) -> None:
        """Delay new batches of operators with timers: timers fire when a batch begins, and some due timers are not here yet."""
        for shared in self._instances.values():
            with shared.changed:
                shared.inheriting = paused
                shared.changed.notify_all()

    # -- the driver's decision ---------------------------------------------------------------------------------------

    def serve(self) -> dict[str, typed.Epochs]:
        """The will is written: own the units. Returns them with their epochs, by operator."""
        for operator, lost in self._operators.items():
            self._receivers[operator].take(lost.released(), None)
            self._answers[operator].expect(messages.StepServed)
        self._enter("served")
        return {operator: lost.epochs() for operator, lost in self._operators.items()}

    def give_up(self) -> None:
        """The lost host is started again instead: stop reading, so that nothing is prepared after this."""
        self._ending = True
        self._thread.join()
        self._drop()
        self._enter("given up")

    def _drop(self) -> None:
        for receiver in self._receivers.values():
            receiver.take(messages.StepAborted(STEP), None)

    def report(self) -> messages.TakeoverReport:
        took_s = ports.now_s() - self.began_s
        return messages.TakeoverReport(self.state, self.failure, self._bytes, self._by_copies, took_s)

    def receivers(self) -> list[Receiver]:
        return list(self._receivers.values())


def _survived(written: tuple[int, int] | None, ends: Mapping[int, int]) -> bool:
    """Whether the log still has all that was durable when the copies got their last message."""
    return written is None or written[1] < ends.get(written[0], 0)

"""What a target says to its origin: answers on the newest connection, and questions about the outcome of a step.

Decides which message answers an effect of the target's machine. Does not know what an answer brings about at the origin.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

import pyarrow as pa

from godwit import ports
from godwit.errors import GodwitError
from godwit.migration.events import AnswerDeclined, AnswerMissing, AnswerOffered, AnswerPrepared, Effect
from godwit.runtime import messages
from godwit.runtime.host_services import HostServices
from godwit.runtime.liveness.leases import host_directory, read_lease
from godwit.runtime.liveness.wills import read_will, takeover_step
from godwit.transport import line, typed
from godwit.transport.flight import GONE


class Answers:
    """The stream of answers to an origin. Any thread may answer; an answer without a connection is dropped."""

    def __init__(self) -> None:
        self._writing = ports.lock()
        self._writer: Any = None

    def start(self, writer: Any) -> None:
        """Answer on this stream from now on. Answers may come from any thread, so `Hello` must be written first."""
        with self._writing, suppress(*GONE, pa.ArrowInvalid):
            writer.write_metadata(typed.pack(messages.Hello()))
            self._writer = writer

    def stop(self) -> None:
        with self._writing:
            self._writer = None

    def send(self, answer: typed.Message) -> None:
        with self._writing, suppress(*GONE, pa.ArrowInvalid):
            if self._writer is not None:
                self._writer.write_metadata(typed.pack(answer))

    def send_for(self, effect: Effect) -> None:
        match effect:
            case AnswerOffered(units):
                self.send(messages.UnitsExpected(units))
            case AnswerPrepared(step):
                self.send(messages.StepPrepared(step))
            case AnswerDeclined(step):
                self.send(messages.StepDeclined(step))
            case AnswerMissing(step):
                self.send(messages.StepMissing(step))
            case _:
                raise AssertionError(effect)


def outcome_of(services: HostServices, origin: str, operator: str, step: str) -> str:
    """What became of a step, by its origin, or by the will of an origin that is lost for good; "away" if there is no answer."""
    directory = host_directory(services.checkpoint, origin)
    try:
        will = read_will(directory)
    except GodwitError:  # it cannot be read now
        return "away"
    if will is not None:
        return "released" if step == takeover_step(will[0], operator) else "kept"
    lease = read_lease(directory)
    if lease is None or lease.incarnation != services.incarnation:
        return "away"
    try:
        with closing(line.connect(lease.address, services.token)) as client:
            return typed.ask(client, messages.ReportOutcome(operator, step), timeout_s=5.0).outcome
    except GodwitError:
        return "away"

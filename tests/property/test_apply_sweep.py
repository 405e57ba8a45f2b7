"""A fault at every step of a request: the n-th line or return of Godwit's own code, for every n until the request passes.

After each fault, either everything that the instance remembers is as it was, and nothing was put in line; or the host has to
end, and its successor has it all from the changelog. Either way the request, sent again, is applied exactly once: the
reference is a host that has never seen a fault.
"""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import godwit
from godwit.errors import StateUncertain
from godwit.model.progress import Progress
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.chunk import chunk_bytes
from godwit.runtime.durable.work import Work
from godwit.runtime.handover.copies import Copies
from godwit.runtime.handover.forwarding import Forwarder
from godwit.runtime.handover.incoming import IncomingHandover
from godwit.runtime.host_services import HostServices
from godwit.runtime.processor.rows import Times
from godwit.runtime.processor.spec import Operator
from tests.property.bench_host import (
    NAME,
    BenchHost,
    chunk_of,
    columns_operator,
    everything_of,
    numbered_chunk_of,
    operator_of,
    request,
    welcome,
)

OWN = str(Path(godwit.__file__).parent)
SPILLING = 2_000  # bytes: less than one chunk takes
OPERATOR = operator_of()

Job = Callable[[BenchHost], Any]

# A fault may strike a generator that is being closed: then Python says so, and goes on.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(1800),  # thousands of faults, one after another
]


class Fault(Exception):
    """What is thrown at the step."""


class Interrupt(BaseException):
    """The same, as what code does not expect to catch."""


class Steps:
    """Counts the lines and returns of Godwit's own code, and throws at one of them.

    Unless it is `thorough`, a line counts only the first time: in a loop over rows or keys, the others are like it.
    """

    def __init__(self, at: int, fault: type[BaseException], thorough: bool) -> None:
        self.at, self.passed, self.fault, self.thorough = at, 0, fault, thorough
        self.where = ""
        self._visits: Counter[tuple[Any, int, str]] = Counter()

    def __enter__(self) -> Steps:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._step if frame.f_code.co_filename.startswith(OWN) else None

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return" or (event == "line" and not _leaves_with(frame)):
            step = (frame.f_code, frame.f_lineno, event)
            self._visits[step] += 1
            if self._visits[step] > 1 and not self.thorough:
                return self._step
            if self.passed == self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {event}"
                self.passed += 1
                raise self.fault(self.where)
            self.passed += 1
        return self._step


def _leaves_with(frame: FrameType) -> bool:
    """A `with` line is passed again on the way out, before the lock is let go, which cannot fail: nor does it here."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


class Sweep:
    """Two hosts that get the same requests, one of them with a fault at a step of each."""

    def __init__(
        self,
        directory: Path,
        memory_max_bytes: int | None,
        prelude: list[Job],
        fault: type[BaseException] = Fault,
        thorough: bool = False,
        operator: Operator = OPERATOR,
    ) -> None:
        self.operator = operator
        self.directory, self.memory_max_bytes, self.prelude = directory, memory_max_bytes, prelude
        self.fault, self.thorough = fault, thorough
        self.worlds = count()
        self.undone = self.recovered = 0

    def fresh(self) -> BenchHost:
        host = BenchHost(self.directory / str(next(self.worlds)), self.operator, self.memory_max_bytes)
        for job in self.prelude:
            job(host)
        host.settle()
        return host

    def run(self, job: Job, told_once: bool) -> None:
        """One request with a fault at every step of it; each that is undone leaves a host that is as good as new."""
        reference = self.fresh()
        wanted = job(reference)
        host, before = self.fresh(), everything_of(self.fresh().instance)
        for at in count():
            next_lsn = host.log._next_lsn
            with Steps(at, self.fault, self.thorough) as steps:
                try:
                    job(host)
                    failure: BaseException | None = None
                except BaseException as error:  # noqa: BLE001 whatever the fault became
                    failure = error
            if failure is None and steps.passed <= at:
                break
            uncertain = host.log.failure is not None
            if uncertain:
                assert isinstance(host.log.failure, StateUncertain), f"{steps.where}: {host.log.failure!r}"
                self.recovered += 1
                host = host.restarted()
            elif host.log._next_lsn == next_lsn:
                assert everything_of(host.instance) == before, f"not as it was after a fault at {steps.where}"
                self.undone += 1
                continue
            # It is done, or it is in the changelog, or lost with what stood in line: sent again, it is applied once.
            host.settle()
            if not (told_once and _all_of(host) == _all_of(reference)):
                assert _said(job(host)) == _said(wanted), f"another answer after a fault at {steps.where}"
            _check_same(host, reference, steps.where)
            host.settle()
            recovered = host.restarted()
            _check_same(recovered, reference, steps.where)
            recovered.close()
            host = self.fresh()
        _check_same(host, reference, "the end")
        host.close()
        reference.close()


def _check_same(host: BenchHost, reference: BenchHost, where: str) -> None:
    assert _all_of(host) == _all_of(reference), f"another state after a fault at {where}"


def _all_of(host: BenchHost) -> dict[str, Any]:
    return everything_of(host.instance, counted=False)


def _said(work: Any) -> Any:
    if not isinstance(work, Work):
        return None
    return sorted(repr(row) for batch in work.outputs for row in batch.to_pylist()), work.begun


# -- requests --------------------------------------------------------------------------------------------------------


def opened(batch: int, now_ms: int) -> Job:
    return lambda host: host.do(lambda i: i.open(request(batch), "0", now_ms, welcome))


def applied(batch: int, rows: list[tuple[str, int]], first: int = 0) -> Job:
    return lambda host: host.do(lambda i: i.apply(request(batch), "0", chunk_of(rows, first)))


def finished(batch: int, rows: int) -> Job:
    return lambda host: host.do(lambda i: i.finish(request(batch), "0", rows, 17))


def rows_of(first: int, keys: int = 5) -> list[tuple[str, int]]:
    """Some keys are new in each chunk, some are known, some lose all that they had."""
    return [(f"k{(first + i) % 30}", first + i) for i in range(keys)]


PRELUDE: list[Job] = [
    opened(0, 1_000),
    *(applied(0, rows_of(7 * at), 12 * at) for at in range(4)),
    finished(0, 48),
    opened(1, 1_500),
    *(applied(1, rows_of(5 * at), 12 * at) for at in range(3)),
]
SIZES = pytest.mark.parametrize("memory_max_bytes", [None, SPILLING], ids=["memory", "spilling"])
FAULTS = pytest.mark.parametrize("fault", [Fault, Interrupt])


def swept(path: Path, job: Job, *given: Any, told_once: bool = False, prelude: Any = PRELUDE, **more: Any) -> None:
    sweep = Sweep(path, given[0] if given else None, prelude, **more)
    sweep.run(job, told_once)
    assert sweep.undone, "no fault came before the append"
    assert sweep.recovered, "no fault came after it"


def test_chunk_is_applied_whole_or_not_at_all(tmp_path: Path) -> None:
    swept(tmp_path, applied(1, rows_of(11), 36))


@pytest.mark.parametrize("fault", [Fault, pytest.param(Interrupt, marks=pytest.mark.long)])
def test_chunk_is_applied_whole_or_not_at_all_where_state_is_in_columns(
    tmp_path: Path, fault: type[BaseException]
) -> None:
    def applied_numbers(rows: list[tuple[str, int]], first: int) -> Job:
        return lambda host: host.do(lambda i: i.apply(request(1), "0", numbered_chunk_of(rows, first)))

    prelude = [opened(1, 1_000), *(applied_numbers(rows_of(7 * at), 12 * at) for at in range(3))]
    job = applied_numbers(rows_of(18, 8), 36)
    swept(tmp_path, job, prelude=prelude, fault=fault, operator=columns_operator(), thorough=True)


@pytest.mark.long
@SIZES
@FAULTS
def test_chunk_is_applied_whole_or_not_at_all_whatever_the_row(
    tmp_path: Path, memory_max_bytes: int | None, fault: type[BaseException]
) -> None:
    swept(tmp_path, applied(1, rows_of(11), 36), memory_max_bytes, fault=fault, thorough=True)


@pytest.mark.long
def test_chunk_that_was_applied_in_part_before(tmp_path: Path) -> None:
    """Its first rows are answered from the ledger, the others are applied."""
    swept(tmp_path, applied(1, [*rows_of(10), *rows_of(20)], 24))


@pytest.mark.long
@SIZES
def test_batch_with_due_timers_and_expired_state_begins_whole_or_not_at_all(
    tmp_path: Path, memory_max_bytes: int | None
) -> None:
    swept(tmp_path, opened(2, 2_100), memory_max_bytes, prelude=[*PRELUDE, finished(1, 36)])


def test_batch_without_timers_begins_whole_or_not_at_all(tmp_path: Path) -> None:
    swept(tmp_path, opened(0, 1_000), prelude=[])


@pytest.mark.long
def test_lane_is_finished_or_not(tmp_path: Path) -> None:
    swept(tmp_path, finished(1, 36))


@pytest.mark.long
def test_initial_rows_are_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    chunk = chunk_of(rows_of(0))
    swept(
        tmp_path,
        lambda host: host.do(lambda i: i.initialise("initial", chunk.batch, chunk.rows, chunk.hashes, 1_000)),
        prelude=[],
    )


@pytest.mark.long
@pytest.mark.parametrize("batch", [0, 1], ids=["of a batch that is over", "of the batch in progress"])
def test_rows_that_are_followed_are_applied_whole_or_not_at_all(tmp_path: Path, batch: int) -> None:
    chunk = chunk_of(rows_of(11), 36)

    def follow(host: BenchHost) -> None:
        host.do(lambda i: i.follow(request(batch), "0", chunk, Times(1_200, 0)))

    # No ledger remembers rows of a batch that is over: their origin tells of them once, and a restart drops copies.
    swept(tmp_path, follow, told_once=batch == 0)


@pytest.mark.long
def test_followers_hear_of_all_that_is_applied_or_the_host_ends(tmp_path: Path) -> None:
    class Line:
        def put(self, out: Any) -> None:
            list(out.bodies)

    line: Any = Line()

    def with_follower(host: BenchHost) -> None:
        everything: Callable[[Any], Any] = lambda hashes: np.ones(len(hashes), np.bool_)  # noqa: E731
        following = Forwarder(host.shared, line, 0, everything, "changes", check=False)
        assert not following.next_slice()
        host.instance.followers.append(following)

    swept(tmp_path, applied(1, rows_of(11), 36), prelude=[*PRELUDE, with_follower])


# -- what comes from another host ------------------------------------------------------------------------------------


def _copies(host: BenchHost) -> Copies:
    port = HostServices("host-0", str(host.directory), "token", "", host.log, lambda: 1_700, lambda: False)
    return Copies(IncomingHandover(port, host.shared, "m1", "host-1"))


def _progress(batch: int) -> Progress:
    return Progress("query", "run", batch)


def _state(body: Any) -> Job:
    return lambda host: _copies(host).state(messages.StepState(0), body)


def _changes(batch: int, body: Any) -> Job:
    return lambda host: _copies(host).changes(messages.StepChanges(0, _progress(batch)), body)


def _committed(body: Any) -> Job:
    return lambda host: _copies(host).state_before_batch(messages.StateBeforeBatch(0, _progress(1)), body)


def _ledger(info: dict[str, Any], body: Any) -> Job:
    return lambda host: _copies(host).ledger(messages.StepLedger(0, _progress(1), info), body)


@pytest.fixture(scope="module")
def shipment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another host would send of two keys: their state, what they held before the batch, and what was applied."""
    host = BenchHost(tmp_path_factory.mktemp("origin"), OPERATOR)
    for job in [opened(0, 1_000), finished(0, 0), opened(1, 1_500), applied(1, [("z1", 3), ("z2", 5)], 100)]:
        job(host)
    keys = [("z1",), ("z2",)]
    (_, entry), *_ = host.instance.ledger.entries()
    info, body = entry.part(NAME, 1, "0")
    found = {
        "state": [b.serialize() for b in host.instance.state.export_keys(keys, 1_000, 1 << 20)],
        "committed": [b.serialize() for b in host.instance.state.export_committed(keys, 1_000, 1 << 20)],
        "entry": (info, pa.py_buffer(body)),
        "units": Units(frozenset(range(8))),
        "chunk": chunk_bytes.chunk_body(chunk_of([("z1", 8), ("z2", 9)], 200)),
    }
    host.close()
    return found


@pytest.mark.long
@SIZES
def test_copies_are_taken_whole_or_not_at_all(
    tmp_path: Path, memory_max_bytes: int | None, shipment: dict[str, Any]
) -> None:
    swept(tmp_path / "state", _state(shipment["state"][1]), memory_max_bytes)
    swept(tmp_path / "changes", _changes(1, shipment["state"][1]), memory_max_bytes)


@pytest.mark.long
def test_what_came_before_the_batch_is_taken_whole_or_not_at_all(tmp_path: Path, shipment: dict[str, Any]) -> None:
    state = [_state(body) for body in shipment["state"]]
    swept(tmp_path / "committed", _committed(shipment["committed"][0]), prelude=[*PRELUDE, *state])
    info, body = shipment["entry"]
    swept(tmp_path / "ledger", _ledger(info, body))


@pytest.mark.long
def test_next_batch_of_an_origin_is_begun_whole_or_not_at_all(tmp_path: Path, shipment: dict[str, Any]) -> None:
    swept(tmp_path, _changes(2, shipment["state"][1]), prelude=[*PRELUDE, finished(1, 36)])

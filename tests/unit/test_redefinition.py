"""An operator that is defined again, on a host and on the driver: what stays, what is dropped, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from godwit.errors import CheckpointMismatch, GodwitError, ProcessorFailed
from godwit.model.progress import BatchRef
from godwit.model.units import Units
from godwit.runtime.messages import OperatorDefinition
from godwit.runtime.processor.spec import Operator
from godwit.spark.define.redefinition import on_state_of
from godwit.state.snapshot import Compactor
from tests.property.bench_host import OUTPUT, BenchHost, Everything, chunk_of, operator_of, request, welcome
from tests.unit.test_spec import SPEC

NARROW = pa.schema([("key", pa.string())])


class Wider(Everything):
    def init(self, handle: Any) -> None:
        super().init(handle)
        self.share = handle.getValueState("share", "x double")


class FailsOnHosts(Wider):
    """As on a host that lacks a file which the driver has."""

    def __reduce__(self) -> Any:
        return _failing, ()


def _failing() -> Everything:
    class Failing(Wider):
        def init(self, handle: Any) -> None:
            raise FileNotFoundError("model.bin")

    return Failing()


def again(processor: Everything, host: BenchHost, output: pa.Schema = OUTPUT) -> Operator:
    """A later definition of the operator that the host has."""
    operator = operator_of(Wider())
    adapter = cloudpickle.loads(operator.adapter)
    adapter._processor, adapter.output_schema = processor, output
    spec = replace(operator.spec, output_schema=output).after(host.instance.spec)
    return Operator(spec, cloudpickle.dumps(adapter), definition="later")


@pytest.fixture
def host(tmp_path: Path) -> Any:
    host = BenchHost(tmp_path, operator_of())
    host.do(lambda instance: instance.open(request(0), "0", 1, welcome))
    host.do(lambda instance: instance.apply(request(0), "0", chunk_of([("a", 1), ("b", 2)])))
    host.settle()
    yield host
    host.close()


def compacted(host: BenchHost) -> None:
    host.log.rotate()
    Compactor(host.log.generation).compact(host.directory, host.log.sealed(), host.instances.settled())


@pytest.mark.parametrize("compact", [False, True])
def test_the_ledger_keeps_its_rows_and_drops_outputs_of_another_schema(host: BenchHost, compact: bool) -> None:
    later = again(Wider(), host, NARROW)
    host.instances.define(OperatorDefinition.of(later))
    if compact:
        compacted(host)
    for _ in range(2):
        ((lane, entry),) = host.instance.ledger.entries()
        assert (lane, entry.rows.tolist(), entry.outputs.num_rows) == ("0", [0, 1], 0)
        assert entry.outputs.schema.names[1:] == ["key"]
        assert host.instance.memory.incomplete, "the lane has not finished: Spark cannot have committed the batch"
        restart(host, later)


def restart(host: BenchHost, operator: Operator) -> None:
    host.operator = operator
    successor = host.restarted()
    host.log, host.instances = successor.log, successor.instances


def test_outputs_of_the_same_schema_stay(host: BenchHost) -> None:
    host.instances.define(OperatorDefinition.of(again(Wider(), host)))
    ((_, entry),) = host.instance.ledger.entries()
    assert entry.outputs.num_rows == 2


def test_code_that_fails_to_open_leaves_state_that_the_changelog_describes(host: BenchHost) -> None:
    later = again(FailsOnHosts(), host)
    with pytest.raises(ProcessorFailed, match=r"model\.bin"):
        host.instances.define(OperatorDefinition.of(later))
    host.instance.state.value_put(4, ("a",), b"\\x00" + bytes(8))
    host.do(lambda instance: instance.durable.change(instance.durable.prepare_state))
    host.settle()
    restart(host, again(Wider(), host))
    assert host.instance.state.value_get(4, ("a",)) is not None


def test_code_that_is_replaced_is_closed(host: BenchHost, tmp_path: Path) -> None:
    class Closing(Wider):
        def close(self) -> None:
            Path(f"{tmp_path}/closed").touch()
            raise ValueError("this does not stop its successor")

    host.instances.define(OperatorDefinition.of(again(Closing(), host)))
    assert not (tmp_path / "closed").exists()
    host.instances.define(OperatorDefinition.of(again(Wider(), host)))
    assert (tmp_path / "closed").exists()
    assert host.instance.definition == "later"


# -- without the state of before -----------------------------------------------------------------------------------


def in_another_life(host: BenchHost, processor: Everything | None = None) -> Operator:
    operator = operator_of(processor)
    return replace(operator, spec=replace(operator.spec, life=host.instance.spec.life + 1, time_mode="processingTime"))


@pytest.mark.parametrize("compact", [False, True])
def test_an_operator_that_begins_anew_has_its_units_and_no_state(host: BenchHost, compact: bool) -> None:
    gone = Units(frozenset({3}))
    host.ownership.cut(gone, "host-1")
    host.ownership.release("m/0", gone, "host-1")
    before = host.ownership
    host.instances.define(OperatorDefinition.of(in_another_life(host)))
    for _ in range(2):
        assert host.instance.state.key_count == 0
        assert not list(host.instance.ledger.entries())
        assert host.instance.progress.query is None, "any query may begin with it"
        assert host.ownership.to_dict() == before.to_dict()
        if compact:
            compacted(host)
        restart(host, replace(operator_of(), spec=replace(operator_of().spec, life=1)))
    host.do(lambda instance: instance.open(BatchRef("another", "run", 0), "0", 1, welcome))


def test_a_task_that_still_has_the_state_of_before_changes_nothing(host: BenchHost) -> None:
    old = host.instance
    host.instances.define(OperatorDefinition.of(in_another_life(host)))
    lsn = host.shared.lsn
    for late in (
        lambda: old.finish(request(0), "0", 2, None),
        lambda: old.apply(request(0), "0", chunk_of([("c", 3)], 2)),
    ):
        with pytest.raises(GodwitError):
            late()
    restart(host, in_another_life(host))
    assert host.instance.state.key_count == 0
    assert host.shared.lsn >= lsn


def test_a_definition_that_fails_leaves_the_state_of_before(host: BenchHost) -> None:
    class Failing(Everything):
        def __reduce__(self) -> Any:
            return _failing, ()

    with pytest.raises(ProcessorFailed, match=r"model\.bin"):
        host.instances.define(OperatorDefinition.of(in_another_life(host, Failing())))
    assert host.instance.state.key_count == 2
    host.do(lambda instance: instance.apply(request(0), "0", chunk_of([("c", 3)], 2)))
    host.instances.define(OperatorDefinition.of(in_another_life(host)))
    assert host.instance.state.key_count == 0


# -- windows ---------------------------------------------------------------------------------------------------------

WINDOW = Operator(replace(SPEC, processor="EventTumbling", flavour="native", ephemeral=False), b"")


def test_the_same_window_goes_on() -> None:
    assert on_state_of(WINDOW, WINDOW.spec) == WINDOW


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"processor": "EventSliding"}, "state of EventTumbling, and this definition is EventSliding"),
        ({"processor": "Mine"}, "state of EventTumbling, and this definition is Mine"),
        (
            {"variables": SPEC.variables[:1]},
            "the window EventTumbling, and this is the window EventTumbling with other",
        ),
    ],
)
def test_a_window_does_not_become_another_one(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointMismatch, match=message):
        on_state_of(replace(WINDOW, spec=replace(WINDOW.spec, **changed)), WINDOW.spec)


def test_an_operator_over_a_batch_dataframe_has_no_state_to_fit() -> None:
    other = replace(SPEC, time_mode="none", variables=())
    stream = replace(SPEC, ephemeral=False)
    assert on_state_of(Operator(other, b""), SPEC).spec == other
    assert on_state_of(Operator(stream, b""), SPEC).spec == stream
    assert on_state_of(Operator(other, b""), stream).spec == other

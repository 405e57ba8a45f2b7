"""Random work on a host, with definitions that change in between, against a model that converts whole values by name.

Whatever comes between two definitions (restarts, compactions, batches that begin anew, a definition that the host has missed),
state and committed state are those of the model, in memory and read again from the changelog.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from godwit.model.progress import BatchRef
from godwit.model.routing import Routing
from godwit.runtime.instance.instance import Instance
from godwit.runtime.instance.instances import HostResources, Instances
from godwit.runtime.messages import OperatorDefinition
from godwit.runtime.processor.spec import OperatorSpec
from godwit.runtime.processor.undefined_operator import undefined_operator
from godwit.runtime.processor.watchdog import Watch
from godwit.runtime.reading.export import rows_of_state
from godwit.state.changelog import Changelog
from godwit.state.codec import compile_codec
from godwit.state.recovery import readable_log
from godwit.state.snapshot import Compactor
from godwit.state.variables import Variable, VariableKind

NAME = "changing"
KEYS = ["a", "b", "c"]
SUB = pa.schema({"sub": pa.int32()})
TYPES: dict[str, Any] = {
    "byte": pa.int8(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "pair": pa.struct([("x", pa.int32())]),
    "pairs": pa.list_(pa.struct([("y", pa.string()), ("x", pa.int64())])),
}
WIDER = {"byte": ["int", "long", "double"], "int": ["long", "double"], "float": ["double"], "text": ["bytes"]}
Values = dict[str, Any]  # of a value, by field


def made(kind: str, n: int) -> Any:
    """A value of the type, or None."""
    if n % 5 == 0:
        return None
    plain: dict[str, Any] = {
        "text": f"{n}",
        "bytes": b"%d" % n,
        "pair": {"x": n},
        "pairs": [{"y": f"{n}", "x": n}] * (n % 3),
    }
    return plain.get(kind, float(n) if kind in ("float", "double") else n)


def widened(value: Any, old: str, new: str) -> Any:
    return value.encode() if value is not None and (old, new) == ("text", "bytes") else value


@dataclass
class Modelled:
    """One variable: its fields, and by key its value, its list, or its map."""

    kind: VariableKind
    fields: dict[str, str]
    data: dict[str, list[tuple[int, Values]]] = field(default_factory=dict)  # pairs of map key (or 0) and value
    before: dict[str, list[tuple[int, Values]]] = field(default_factory=dict)  # at the last settled moment
    declared: bool = True

    def variable(self, name: str) -> Variable:
        schema = pa.schema({name: TYPES[kind] for name, kind in self.fields.items()})
        return Variable(name, self.kind, schema, SUB if self.kind == "map" else None)

    def convert(self, fields: dict[str, str]) -> None:
        def converted(values: Values) -> Values:
            return {
                name: widened(values[name], self.fields[name], kind) if name in values else None
                for name, kind in fields.items()
            }

        for data in (self.data, self.before):
            for key, pairs in data.items():
                data[key] = [(sub, converted(values)) for sub, values in pairs]
        self.fields = fields

    def put(self, key: str, sub: int, values: Values) -> None:
        pairs = self.data.setdefault(key, [])
        if self.kind == "value":
            pairs[:] = [(0, values)]
        elif self.kind == "list":
            pairs.append((0, values))
        elif sub in dict(pairs):
            pairs[:] = [(each, values if each == sub else old) for each, old in pairs]
        else:
            pairs.append((sub, values))

    def shown(self, data: dict[str, list[tuple[int, Values]]], key: str) -> Any:
        pairs = data.get(key)
        if not pairs:
            return None
        if self.kind == "map":
            return [({"sub": sub}, values) for sub, values in pairs]
        return pairs[0][1] if self.kind == "value" else [values for _, values in pairs]


class Evolution(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.modelled = {
            "v": Modelled("value", {"n": "int", "t": "text"}),
            "l": Modelled("list", {"n": "byte", "p": "pairs"}),
            "m": Modelled("map", {"f": "float"}),
        }
        key = pa.schema({"key": pa.string()})
        variables = tuple(each.variable(name) for name, each in self.modelled.items())
        self.spec = OperatorSpec(NAME, "Any", "row", key, pa.schema({"x": pa.int64()}), variables)
        self.batch, self.run = 0, 0
        self.open()

    def open(self) -> None:
        self.log, recovered = Changelog.open(self.root)
        resources = HostResources(self.log, Watch(lambda _: None), lambda: 0, set)
        self.instances = Instances("host-0", resources, Routing.spread(["host-0"], 8))
        for part in recovered.parts():
            self.instances.recover(dict(part.info), memoryview(part.body))
        if self.instances.get(NAME) is None:
            self.define()
            self.begin()

    def define(self) -> None:
        self.instances.define(OperatorDefinition.of(undefined_operator(self.spec)))

    @property
    def instance(self) -> Instance:
        return self.instances.named(NAME).instance

    def begin(self) -> None:
        request = BatchRef("query", f"run-{self.run}", self.batch)
        self.instance.open(request, "0", 0, lambda *_: False)
        self.log.flush(self.instance.lsn)

    # -- work --------------------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), name=st.sampled_from("vlmn"), n=st.integers(1, 99))
    def put(self, key: str, name: str, n: int) -> None:
        self.define()
        each = self.modelled.get(name)
        if each is None or not each.declared:
            return
        place = [variable.name for variable in self.spec.variables].index(name)
        values = {field: made(kind, n + at) for at, (field, kind) in enumerate(each.fields.items())}
        payload = compile_codec(self.spec.variables[place].schema).encode(tuple(values.values()))
        state = self.instance.state
        match each.kind:
            case "value":
                state.value_put(place, (key,), payload)
            case "list":
                state.list_append(place, (key,), [payload])
            case "map":
                state.map_put(place, (key,), compile_codec(SUB).encode((n % 3,)), payload)
        each.put(key, n % 3, values)
        self.write()

    @rule(key=st.sampled_from(KEYS), name=st.sampled_from("vlm"))
    def clear(self, key: str, name: str) -> None:
        self.define()
        each = self.modelled.get(name)
        if each is None or not each.declared:
            return
        place = [variable.name for variable in self.spec.variables].index(name)
        state = self.instance.state
        clear = {"value": state.value_clear, "list": state.list_clear, "map": state.map_clear}
        clear[each.kind](place, (key,))
        each.data.pop(key, None)
        self.write()

    def write(self) -> None:
        work = self.instance.durable.change(self.instance.durable.prepare_state)
        self.log.flush(work.lsn)

    @rule()
    def next_batch(self) -> None:
        self.batch += 1
        self.begin()
        for each in self.modelled.values():
            each.before = deepcopy(each.data)

    @rule()
    def batch_begins_anew(self) -> None:
        self.run += 1
        self.begin()
        for each in self.modelled.values():
            each.data = deepcopy(each.before)

    # -- definitions -------------------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 10**6), heard=st.booleans())
    def redefine(self, seed: int, heard: bool) -> None:
        """Change the definition; `heard`: the host gets it now, and not only together with the next one."""
        draw = random.Random(seed)
        deleted = []
        for name, each in list(self.modelled.items()):
            fate = draw.random()
            if fate < 0.1:
                deleted.append(name)
                del self.modelled[name]
            elif fate < 0.25:
                each.declared = False
            else:
                each.declared = True
                each.convert(self.changed(draw, each.fields))
        if draw.random() < 0.3:
            for name in draw.sample("vlmn", 1):
                kind: Any = draw.choice(["value", "list", "map"])
                self.modelled.setdefault(name, Modelled(kind, self.changed(draw, {"z": "int"})))
        declared = [each.variable(name) for name, each in self.modelled.items() if each.declared]
        draw.shuffle(declared)
        self.spec = replace(self.spec, variables=tuple(declared)).after(self.spec, deleted)
        if heard:
            self.define()

    @staticmethod
    def changed(draw: random.Random, fields: dict[str, str]) -> dict[str, str]:
        new = {name: draw.choice([kind, *WIDER.get(kind, ())]) for name, kind in fields.items() if draw.random() < 0.8}
        added = draw.choice("pqrst")
        if not new or (added not in fields and draw.random() < 0.4):
            new[added if added not in fields else f"{added}{draw.random()}"] = draw.choice(list(TYPES))
        names = list(new)
        draw.shuffle(names)
        return {name: new[name] for name in names}

    # -- what comes between ------------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.instances.close()
        self.open()

    @rule()
    def compact(self) -> None:
        self.next_batch()
        self.log.rotate()
        Compactor(self.log.generation).compact(self.root, self.log.sealed(), self.instances.settled())
        self.the_log_reads_as_the_model()

    # -- checks ------------------------------------------------------------------------------------------------------

    @invariant()
    def the_state_is_that_of_the_model(self) -> None:
        self.check(self.instance)

    def the_log_reads_as_the_model(self) -> None:
        log = readable_log(self.root)
        assert log is not None
        nothing_written: Any = None
        reader = Instances("host-0", HostResources(nothing_written, Watch(lambda _: None), lambda: 0, set))
        for part in log.parts():
            reader.recover(dict(part.info), memoryview(part.body))
        self.check(reader.named(NAME).instance)

    def check(self, instance: Instance) -> None:
        for committed in (False, True):
            rows = rows_of_state(self.spec, instance.state.export(committed), "host-0", 1)
            shown = {row["key"]: row for batch in rows for row in batch.to_pylist()}
            for name, each in self.modelled.items():
                for key in KEYS if each.declared else ():
                    expected = each.shown(each.before if committed else each.data, key)
                    assert shown.get(key, {}).get(name) == expected, (committed, name, key)

    def teardown(self) -> None:
        self.restart()
        self.check(self.instance)
        self.define()
        self.check(self.instance)
        self.log.close()
        self.instances.close()
        shutil.rmtree(self.root)


TestEvolution = Evolution.TestCase
TestEvolution.settings = settings(max_examples=40, stateful_step_count=25)

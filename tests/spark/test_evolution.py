"""Operators that are defined again on the state of an earlier definition: every row of the guide's table, through Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

import godwit
from godwit.errors import CheckpointMismatch, DefinitionError
from godwit.spark.checkpoint.flock_directory import FlockDirectory
from godwit.spark.pyspark_api.stateful import describe
from godwit.state.value_conversion import Obstacle, obstacles
from tests.spark.side_by_side import Feed

cloudpickle.register_pickle_by_value(sys.modules[__name__])

INPUT = pa.schema({"key": pa.string(), "n": pa.int32()})
KEYS = [f"k{n}" for n in range(12)]
NAME = "total"


class Total(StatefulProcessor):
    """Adds up `n` in a value, remembers it in a list, and counts it in a map. Subclasses have other schemas."""

    VALUE, ITEMS, SEEN, NUMBER = "n int, last string", "n int", "n int", int
    OUTPUT = "key string, n long, last string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", self.VALUE)
        self.items = handle.getListState("items", self.ITEMS)
        self.seen = handle.getMapState("seen", "n int", self.SEEN)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            n = row.n + (self.value.get()[0] if self.value.exists() else 0)
            self.value.update(self.made(n, f"{row.n}"))
            self.items.appendValue((self.NUMBER(row.n),))
            seen = self.seen.getValue((row.n,))
            self.seen.updateValue((row.n,), (1 if seen is None else seen[0] + 1,))
            yield self.output(key[0], n)

    def made(self, n: int, last: str) -> tuple[Any, ...]:
        return n, last

    def output(self, key: str, n: int) -> Row:
        return Row(key=key, n=n, last=self.value.get()[1])

    def close(self) -> None:
        pass


class Wider(Total):
    """Fields are added, moved and wider."""

    VALUE, ITEMS, SEEN, NUMBER = "n long, share double, last string", "n double", "n long", float

    def made(self, n: int, last: str) -> tuple[Any, ...]:
        return n, None, last

    def output(self, key: str, n: int) -> Row:
        return Row(key=key, n=n, last=self.value.get()[2])


class Slim(Total):
    """A field and a variable are gone, and the output has other columns."""

    VALUE = "n long"
    OUTPUT = "n long, key string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", self.VALUE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.value.update(((self.value.get() or (0,))[0] + row.n,))
        yield Row(n=self.value.get()[0], key=key[0])


class Deleting(Slim):
    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        handle.deleteIfExists("items")


class Lost(Total):
    """Throws at the last row of a batch, once its rows are applied."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from super().handleInputRows(key, rows, timerValues)
        if key[0] == KEYS[-1]:
            raise ValueError("not yet")


class Job:
    """One query on one operator, over several definitions."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.feed = Feed(root / "feed", INPUT)
        self.flock = self.open()
        self.outputs: list[Row] = []
        self.query: StreamingQuery | None = None

    def open(self, hosts: int = 2) -> godwit.Flock:
        self.flock = godwit.Flock(self.spark, hosts=hosts, checkpoint=self.root / "flock")
        return self.flock

    def define(self, processor: Total, **changed: Any) -> DataFrame:
        given = {"timeMode": "none", "name": NAME} | changed
        return self.flock.transformWithState(self.feed.stream(self.spark), "key", processor, processor.OUTPUT, **given)

    def start(self, frame: DataFrame, location: str | None = "spark") -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(lambda batch, _: self.outputs.extend(batch.collect()))
        located = writer if location is None else writer.option("checkpointLocation", str(self.root / location))
        self.query = located.outputMode("update").start()
        return self.query

    def run(self, frame: DataFrame, *rows: tuple[str, int]) -> list[Row]:
        """Run a query on these rows, or on one row of each key; returns its outputs, by key."""
        self.feed.add(list(rows) or [(key, 1) for key in KEYS])
        self.outputs.clear()
        query = self.start(frame)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return sorted(self.outputs, key=lambda row: str(row["key"]))

    def state(self, key: str = "k0") -> Row:
        (row,) = self.flock.state(NAME).where(f"key = '{key}'").collect()
        return row

    def read(self, key: str = "k0") -> Row:
        """The same through the data source."""
        source = self.spark.read.format("godwit").options(operator=NAME).load(str(self.root / "flock"))
        (row,) = source.where(f"key = '{key}'").collect()
        return row


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Iterator[Job]:
    job = Job(spark, tmp_path)
    yield job
    if job.query is not None:
        job.query.stop()
    job.flock.close()


@pytest.mark.feature(
    "evolution",
    "fields of state variables added (null), removed, moved, widened",
    spark="with the Avro encoding",
    godwit="always",
)
def test_a_cell_is_run_again_with_fields_added_moved_widened_and_removed(job: Job) -> None:
    assert {row.n for row in job.run(job.define(Total()))} == {1}
    frame = job.define(Wider())
    before = job.state()
    assert before.value == Row(n=1, share=None, last="1")
    assert before["items"] == [Row(n=1.0)]
    assert before == job.read(), "old rows are read in the new form from the changelog, too"
    assert {row.n for row in job.run(frame)} == {2}
    assert job.state()["items"] == [Row(n=1.0), Row(n=1.0)]
    assert job.state().seen == {Row(n=1): Row(n=2)}
    assert {(row.n, len(row)) for row in job.run(job.define(Slim()))} == {(3, 2)}
    assert "items" not in job.state().asDict()
    again = job.run(job.define(Wider()))
    assert {(row.n, row.last) for row in again} == {(4, "1")}
    assert job.state()["items"] == [Row(n=1.0)] * 3, "what is not declared stays until it is declared again"


@pytest.mark.feature(
    "evolution",
    "`deleteIfExists` of a variable of an earlier definition",
    spark="with the next batch",
    godwit="when the operator is defined",
)
@pytest.mark.long
def test_a_deleted_variable_starts_anew(job: Job) -> None:
    job.run(job.define(Total()))
    job.run(job.define(Deleting()))
    job.define(Wider())
    assert job.state()["items"] is None
    assert job.state().seen == {Row(n=1): Row(n=1)}


@pytest.mark.long
def test_a_changed_definition_goes_on_after_a_restart_with_other_hosts(job: Job) -> None:
    job.run(job.define(Total()))
    for hosts, processor, n in ((3, Wider(), 2), (1, Slim(), 3), (2, Wider(), 4)):
        job.flock.close()
        job.open(hosts)
        assert {row.n for row in job.run(job.define(processor))} == {n}
        assert job.state() == job.read()


@pytest.mark.feature(
    "evolution", "a batch that was not committed is replayed by the new processor, with its own output schema"
)
def test_a_batch_that_failed_is_replayed_by_the_next_definition(job: Job) -> None:
    """The host has applied rows of it, in the old form and with the old outputs."""
    job.run(job.define(Total()))
    with pytest.raises(StreamingQueryException, match="not yet"):
        job.run(job.define(Lost()))
    job.outputs.clear()
    query = job.start(job.define(Slim()))
    query.processAllAvailable()
    query.stop()
    assert {(row.n, len(row)) for row in job.outputs} == {(2, 2)}


@pytest.mark.long
def test_keys_move_between_the_definitions(job: Job) -> None:
    job.run(job.define(Total()))
    job.define(Wider())
    assert job.flock.move(NAME, keys=["k0", "k1", "k2"], to="host-1").wait(60)
    assert job.state().host == "host-1"
    assert {row.n for row in job.run(job.define(Wider()))} == {2}


@pytest.mark.feature(
    "evolution",
    "a change that cannot be converted",
    spark="the query fails when it starts",
    godwit="refused when the operator is defined, with the field and the way out",
)
def test_what_cannot_be_converted_is_refused_before_anything_runs(job: Job) -> None:
    frame = job.define(Wider())
    job.run(frame)
    with pytest.raises(CheckpointMismatch) as caught:
        job.define(Total())
    for words in (
        "operator=total",
        "state variable 'value': field 'n' is int64 in the checkpoint and int32 now: values may not fit",
        "state variable 'items': field 'n' is double in the checkpoint and int32 now: values may not fit",
        "deleteIfExists",
    ):
        assert words in str(caught.value)
    assert {row.n for row in job.run(frame)} == {2}, "the definition before is as it was"


def test_an_operator_is_not_defined_again_while_a_query_runs_with_it(job: Job) -> None:
    frame = job.define(Total())
    job.feed.add([("k0", 1)])
    query = job.start(frame)
    query.processAllAvailable()
    with pytest.raises(DefinitionError, match=rf"the query {query.id} runs with this operator.*Stop that query first"):
        job.define(Wider())
    job.feed.add([("k0", 1)])
    query.processAllAvailable()
    assert [row.n for row in job.outputs] == [1, 2]
    query.stop()
    job.define(Wider())


def test_a_dataframe_of_an_earlier_definition_is_refused(job: Job) -> None:
    old = job.define(Total())
    new = job.define(Wider())
    with pytest.raises(StreamingQueryException, match="defined again since this DataFrame was made"):
        job.run(old)
    job.outputs.clear()
    query = job.start(new)
    query.processAllAvailable()
    query.stop()
    assert len(job.outputs) == len(KEYS)


@pytest.mark.feature("life of a processor", "the state of a query without checkpointLocation ends with the query")
def test_an_operator_whose_query_had_no_checkpoint_location_begins_anew(job: Job) -> None:
    """A cell of a notebook, run again: Spark has forgotten the query, and reads all of its input once more."""
    job.feed.add([(key, 1) for key in KEYS])

    def run_cell(processor: Total, **changed: Any) -> list[int]:
        job.outputs.clear()
        query = job.start(job.define(processor, **changed), location=None)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert len(job.outputs) == len(KEYS)
        return sorted({row.n for row in job.outputs})

    assert run_cell(Total()) == [1]
    assert job.flock.move(NAME, keys=["k0", "k1"], to="host-1").wait(60)
    assert run_cell(Total()) == [1]
    assert job.state("k1").host == "host-1", "owners stay as they are"
    assert run_cell(Total(), timeMode="processingTime") == [1], "nothing has to fit what is not there"
    with pytest.raises(StreamingQueryException, match="not yet"):
        run_cell(Lost())
    job.flock.close()
    job.open(3)
    assert run_cell(Wider()) == [1]
    assert job.read().value == Row(n=1, share=None, last="1")
    assert [entry for entry in job.flock.history() if "begun anew" in str(entry)]
    frame = job.define(Wider())
    first = job.start(frame, location=None)
    first.processAllAvailable()
    first.stop()
    with pytest.raises(StreamingQueryException, match="If it had none, define the operator again"):
        job.start(frame, location=None).processAllAvailable()


@pytest.mark.long
def test_copies_of_a_standby_take_the_new_form_too(job: Job) -> None:
    job.run(job.define(Total()))
    copies = job.flock.standby(NAME, to="host-1")
    assert copies.wait(60)
    job.define(Wider())
    assert copies.standing, "copies that are complete take the new form on both hosts"
    assert job.flock.drain("host-0", protocol="standby").wait(60)
    assert job.state().value == Row(n=1, share=None, last="1")
    assert {row.n for row in job.run(job.define(Wider()))} == {2}


@pytest.mark.long
def test_a_batch_operator_is_defined_again_as_often_as_one_likes(job: Job) -> None:
    """Also under the name of an operator over a stream, whose state stays."""
    job.run(job.define(Wider()))
    before = job.state()
    for processor in (Total(), Slim()):
        frame = job.flock.transformWithState(
            job.feed.batch(job.spark), "key", processor, processor.OUTPUT, timeMode="none", name=NAME
        )
        assert {row.n for row in frame.collect()} == {1}
    assert job.read() == before
    assert {row.n for row in job.run(job.define(Wider()))} == {2}


@pytest.mark.long
def test_an_application_that_ends_between_two_hosts_leaves_a_checkpoint_that_can_be_scaled(job: Job) -> None:
    """The checkpoint has the definition, and no host has heard of it; opened again, state moves before it is defined."""
    job.run(job.define(Total()))
    job.flock.close()
    directory = FlockDirectory.existing(job.root / "flock")
    recorded = directory.operator(NAME)
    assert recorded is not None
    declared = describe(Wider()).variables
    directory.write_operator(replace(recorded[0], variables=declared).after(recorded[0]), None)
    job.open(3)
    assert len({row.host for row in job.flock.state(NAME).collect()}) == 3
    assert job.state().value == Row(n=1, share=None, last="1")
    assert {row.n for row in job.run(job.define(Wider()))} == {2}


# -- beside Spark ----------------------------------------------------------------------------------------------------


class Shown(Total):
    """Shows all of its state, then adds to it."""

    OUTPUT = "key string, before string"

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        items = [tuple(item) for item in self.items.get()]
        before = (self.value.get(), items, sorted(self.seen.iterator()))
        for _ in super().handleInputRows(key, rows, timerValues):
            pass
        yield Row(key=key[0], before=repr(before))

    def output(self, key: str, n: int) -> Row:
        return Row()


class ShownWider(Shown):
    VALUE, ITEMS, SEEN, NUMBER = Wider.VALUE, Wider.ITEMS, Wider.SEEN, float

    def made(self, n: int, last: str) -> tuple[Any, ...]:
        return n, None, last


class ShownSlim(Slim):
    OUTPUT = "key string, before string"

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = repr(self.value.get())
        for _ in super().handleInputRows(key, rows, timerValues):
            pass
        yield Row(key=key[0], before=before)


@pytest.mark.feature(
    "evolution", "a variable that is not declared any more keeps its state, and has it when it is declared again"
)
@pytest.mark.long
def test_spark_shows_the_same_state_to_the_same_definitions(job: Job, tmp_path: Path) -> None:
    spark = job.spark
    spark.conf.set("spark.sql.streaming.stateStore.encodingFormat", "avro")
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    try:
        for processor in (Shown(), ShownWider(), ShownSlim(), ShownWider(), ShownWider()):
            frame = job.feed.stream(spark).groupBy("key")
            plain = frame.transformWithState(processor, processor.OUTPUT, "update", "none")
            given = job.run(job.define(processor))
            outputs: list[Row] = []
            writer = plain.writeStream.foreachBatch(lambda batch, _, to=outputs: to.extend(batch.collect()))
            query = writer.option("checkpointLocation", str(tmp_path / "plain")).outputMode("update").start()
            try:
                query.processAllAvailable()
            finally:
                query.stop()
            assert given == sorted(outputs, key=lambda row: str(row["key"]))
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.encodingFormat")
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


# -- the rules, beside Avro's own ------------------------------------------------------------------------------------

LEAVES = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp"]
kinds = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(lambda kind: f"array<{kind}>"),
        inner.map(lambda kind: f"map<string,{kind}>"),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda fields: f"struct<{','.join(f'f{at}:{kind}' for at, kind in enumerate(fields))}>"
        ),
    ),
    max_leaves=4,
)
schemas = st.dictionaries(st.sampled_from("ab"), kinds, min_size=1, max_size=2).map(
    lambda fields: ", ".join(f"{name} {kind}" for name, kind in fields.items())
)

# The Avro type in which Spark stores values of a type. Avro does not know which of Spark's types it stands for.
STORED = {
    **dict.fromkeys(("int8", "int16", "int32", "date32[day]"), "int"),
    **dict.fromkeys(("int64", "timestamp[us, tz=UTC]"), "long"),
    **dict.fromkeys(("string", "binary"), "bytes"),
    "float": "float",
    "double": "double",
}
PROMOTED = {("int", "long"), *((old, new) for old in ("int", "long") for new in ("float", "double"))}


@pytest.fixture(scope="module")
def avro_reads(spark: SparkSession) -> Callable[[str, str], bool]:
    """Whether Spark, with its Avro encoding, reads state of the old schema with the new one: by its own code."""
    jvm: Any = spark._jvm
    to_avro = jvm.org.apache.spark.sql.avro.SchemaConverters.toAvroTypeWithDefaults
    parsed = jvm.org.apache.spark.sql.types.StructType.fromDDL
    validator = jvm.org.apache.avro.SchemaValidatorBuilder().canReadStrategy().validateAll()

    def reads(old: str, new: str) -> bool:
        before = jvm.java.util.Collections.singletonList(to_avro(parsed(old)))
        try:
            validator.validate(to_avro(parsed(new)), before)
        except Py4JJavaError as error:
            if "SchemaValidationException" in str(error):
                return False
            raise
        return True

    return reads


def found(old: str, new: str) -> list[Obstacle]:
    return obstacles(*(to_arrow_schema(StructType.fromDDL(ddl), timezone="UTC") for ddl in (old, new)))


def is_reinterpreted(obstacle: Obstacle) -> bool:
    """Whether Avro sees no obstacle because it takes both types for its own: Spark reads the bits of the one as the other."""
    old, new = STORED.get(obstacle.old), STORED.get(obstacle.new)
    return old is not None and (old == new or (old, new) in PROMOTED)


@settings(max_examples=150)
@given(old=schemas, new=schemas)
@pytest.mark.long
def test_spark_allows_what_is_allowed_and_refuses_or_reinterprets_the_rest(
    old: str, new: str, avro_reads: Callable[[str, str], bool]
) -> None:
    refused = found(old, new)
    if not refused:
        assert avro_reads(old, new)
    elif avro_reads(old, new):
        assert all(map(is_reinterpreted, refused)), refused


@pytest.mark.feature("evolution", "int to long, float to double and all other widenings of Avro")
@pytest.mark.feature(
    "evolution",
    "int as short, date as int, long as timestamp, binary as string",
    spark="the bits of the one are read as the other",
    godwit="refused",
)
@pytest.mark.parametrize("old", LEAVES)
def test_every_pair_of_types_is_allowed_as_in_spark(old: str, avro_reads: Callable[[str, str], bool]) -> None:
    for new in LEAVES:
        refused = found(f"a {old}", f"a {new}")
        assert avro_reads(f"a {old}", f"a {new}") == (not refused or is_reinterpreted(refused[0])), new

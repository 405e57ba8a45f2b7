"""What users do wrong, on real Spark: each gets an error that says what, where and what next, and no state is lost.

A batch that fails leaves the state as it was; when the cause is gone, the same query goes on exactly.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyspark.cloudpickle
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

import godwit
from godwit.errors import (
    CheckpointCorrupt,
    CheckpointMismatch,
    CheckpointUnusable,
    CheckpointVersion,
    DefinitionError,
    NotEnoughSlots,
    ProcessorFailed,
    WrongToken,
)
from godwit.runtime.controller import Controller
from godwit.runtime.messages import GetStatus
from godwit.spark import running_flock
from godwit.transport import typed
from godwit.transport.flight import Client
from tests.spark.flocks import wait_until
from tests.spark.moods import BAD, EVENTS, OUTPUT, Case, Count, Life, Moody, assert_said
from tests.spark.side_by_side import Feed

for pickler in (cloudpickle, pyspark.cloudpickle):
    pickler.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def flock(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[godwit.Flock]:
    with godwit.Flock(spark, hosts=1, checkpoint=tmp_path_factory.mktemp("shared") / "godwit") as flock:
        yield flock


@pytest.fixture
def case(spark: SparkSession, flock: godwit.Flock, tmp_path: Path, request: pytest.FixtureRequest) -> Case:
    """An operator of the shared flock, by the name of the test."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.removeprefix("test_"))
    return Case(spark, flock, tmp_path / "case", name[:90])


# -- rows and processors: the batch fails, state is as before, the query goes on ---------------------------------------

MOODS = {
    "throws": ("GODWIT-PROCESSOR-FAILED", "ValueError: no such car", "start the query again"),
    "exits": ("GODWIT-PROCESSOR-FAILED", "SystemExit: enough", "start the query again"),
    "keeps a wrong type": (
        "GODWIT-STATE-TYPE",
        "field 'n' takes int64, not str 'many'",
        "variable=total",
        "change the schema",
    ),
    "keeps too few fields": (
        "GODWIT-STATE-TYPE",
        "a tuple of 2 values (n, last) is expected",
        "variable=total",
        "in order",
    ),
    "keeps too much": ("GODWIT-STATE-TOO-LARGE", "over the limit of 1000", "variable=total", "raise the limit"),
    "yields a wrong type": (
        "GODWIT-OUTPUT-MISMATCH",
        "output column 'count' is declared as int64, and the processor gave str 'many'",
        "outputStructType agree",
    ),
    "yields another column": (
        "GODWIT-OUTPUT-MISMATCH",
        "has no field for output column 'count'",
        "outputStructType agree",
    ),
    "yields too many values": (
        "GODWIT-OUTPUT-MISMATCH",
        "Rows with the columns ['key', 'count', 'n']",
        "outputStructType agree",
    ),
    "yields no row": ("GODWIT-OUTPUT-MISMATCH", "yielded str 'neither a Row", "outputStructType agree"),
}
HANGS = {
    "hangs in Python": ("GODWIT-PROCESSOR-TIMEOUT", "more than 1 s", "longer timeout_s"),
    "hangs in C": ("GODWIT-PROCESSOR-TIMEOUT", "more than 1 s", "longer timeout_s", "host=host-0"),
}


AFTER = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), (BAD, 1), (BAD, 2)]


def assert_fails_and_goes_on(case: Case, moods: dict[str, tuple[str, ...]], *where: str) -> None:
    """Batch 0 succeeds; batch 1 fails in every mood and changes nothing; without a mood it is processed, exactly."""
    case.add("a", "b", "a")
    assert case.run() == ""
    case.add("a", BAD, BAD, "b", first=10)
    for mood, (code, *words) in moods.items():
        case.mood.write_text(mood)
        assert_said(case.run(), code, *words, f"operator={case.name}", "batch=1", "lane=0", *where)
        assert case.state() == {"a": 2, "b": 1}, mood
    case.mood.unlink()
    assert case.run() == ""
    assert case.counts() == AFTER
    assert case.state() == {"a": 3, "b": 2, BAD: 2}


def test_a_processor_that_does_wrong_in_many_ways(case: Case) -> None:
    case.define(value_bytes_max=1000)
    assert_fails_and_goes_on(case, MOODS, f"key=('{BAD}',)")


@pytest.mark.long
def test_a_processor_that_hangs_in_python_and_then_in_c_code(case: Case) -> None:
    case.define(timeout_s=1.0)
    assert_fails_and_goes_on(case, HANGS, f"key=('{BAD}',)")


NATIVE_MOODS = {
    "throws": ("GODWIT-PROCESSOR-FAILED", "ValueError: no such car", "start the query again"),
    "keeps a wrong type": ("GODWIT-STATE-TYPE", "field=n", "expected=int64", "Declare a type"),
    "keeps fractions": ("GODWIT-STATE-TYPE", "field=n", "expected=int64, given=float64", "Declare a type"),
    "yields a wrong type": ("GODWIT-OUTPUT-MISMATCH", "output column 'count' must be int64", "output_schema agree"),
    "yields another column": (
        "GODWIT-OUTPUT-MISMATCH",
        "['total'] are not in the output schema",
        "output_schema agree",
    ),
    "yields too few rows": ("GODWIT-OUTPUT-MISMATCH", "'count' has 3 values for 4 rows", "output_schema agree"),
    "yields no outputs": ("GODWIT-OUTPUT-MISMATCH", "must return what emit() gives", "output_schema agree"),
}


@pytest.mark.long
def test_a_native_processor_that_does_wrong_in_many_ways(case: Case) -> None:
    case.define_native()
    assert_fails_and_goes_on(case, NATIVE_MOODS)


def test_null_keys_are_an_error_if_so_told_that_names_the_row_and_go_on_in_a_bucket(life: Life) -> None:
    life.case.add("a")
    life.case.add("a", "b", None)
    where = ("operator=count", "batch=1", "lane=", "row=")
    with life.open():
        text = life.case.define(null_keys="error").run()
        assert_said(text, "GODWIT-NULL-KEY", "key column 'key' is null", 'null_keys="bucket"', *where)
        assert life.case.state() == {"a": 1}
    with life.open():
        assert life.case.define().run() == ""
        assert life.case.state() == {"a": 2, "b": 1, None: 1}
    assert life.counts() == [("a", 1), ("a", 2), ("b", 1), (None, 1)]


def test_null_keys_have_a_bucket(case: Case) -> None:
    case.define()
    case.add("a", None, "a", None)
    case.add(None)
    assert case.run() == ""
    assert case.state() == {"a": 2, None: 3}
    assert case.counts() == [("a", 1), ("a", 2), (None, 1), (None, 2), (None, 3)]


@pytest.mark.parametrize("sequence", ["7 - n", "0 * n"])
def test_a_sequence_that_does_not_ascend(sequence: str, case: Case) -> None:
    frame = case.feed.stream(case.spark).withColumn("lane", sf.lit("x")).withColumn("at_row", sf.expr(sequence))
    case.define(frame=frame, lane="lane", sequence="at_row", partitions="input")
    case.add("a", "b")
    text = case.run()
    where = (f"operator={case.name}", "batch=0", "lane=column-")
    assert_said(text, "GODWIT-NOT-REPLAYABLE", "the sequence column goes from", "Kafka's offset", *where)
    assert case.state() == {}


def test_a_sequence_that_repeats_within_a_key(case: Case) -> None:
    frame = case.feed.stream(case.spark).withColumn("lane", sf.lit("x")).withColumn("at_row", sf.expr("n div 2"))
    case.define(frame=frame, lane="lane", sequence="at_row")
    case.add("a", "a", "a")
    assert_said(case.run(), "GODWIT-NOT-REPLAYABLE", "has two rows with sequence", "Kafka's offset", "batch=0")
    assert case.state() == {}


def test_the_words_reach_the_user_through_other_sinks_and_batch_frames_too(case: Case) -> None:
    case.define(null_keys="error")
    case.add("a", None)
    writer = case.frame.writeStream.format("parquet").option("checkpointLocation", str(case.root / "spark"))
    query = writer.trigger(availableNow=True).start(str(case.root / "out"))
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(120)
    assert_said(str(caught.value), "GODWIT-NULL-KEY", f"operator={case.name}")
    case.name += "-batch"
    case.define(frame=case.feed.batch(case.spark), null_keys="error")
    with pytest.raises(Exception, match="GODWIT-NULL-KEY") as caught_in_batch:
        case.frame.collect()
    assert_said(str(caught_in_batch.value), "GODWIT-NULL-KEY", f"operator={case.name}")


# -- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark")
def test_tuning_a_session_that_runs_already(caplog: pytest.LogCaptureFixture) -> None:
    """In real time its rows would wait for ever; otherwise it is only slower."""
    with pytest.raises(DefinitionError, match=r"a session runs already.*without.* spark\.buffer\.size") as caught:
        godwit.tune(SparkSession.builder, real_time=True)
    assert_said(str(caught.value), "GODWIT-DEFINITION", "Stop the session", "spark-submit")
    godwit.tune(SparkSession.builder)
    assert "a session runs already, and it was started without spark.hadoop." in caplog.text


# -- definitions: refused on the driver, before anything runs -----------------------------------------------------------


class Locked(Moody):
    def __init__(self) -> None:
        super().__init__(Path("none"))
        self.lock = threading.Lock()


class Throws(Moody):
    def init(self, handle: StatefulProcessorHandle) -> None:
        raise KeyError("no settings")


class Twice(Moody):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.one = handle.getValueState("total", "n bigint")
        self.two = handle.getListState("total", "n bigint")


class Nameless(Moody):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n whatever")


MOODLESS = Moody(Path("none"))
Changed = dict[str, Any] | Callable[[DataFrame], dict[str, Any]]
DEFINITIONS: dict[str, tuple[Changed, tuple[str, ...]]] = {
    "a key column that is not there": ({"keys": "car"}, ("no column 'car'", "The columns of the input are key, n, at")),
    "one of several key columns is not there": ({"keys": ["key", "car"]}, ("no column 'car'",)),
    "no key column": ({"keys": []}, ("keys= names no column",)),
    "a key column named twice": ({"keys": ["key", "key"]}, ("key column 'key' is named twice",)),
    "keys that are no names": ({"keys": 5}, ("keys=5 does not name columns",)),
    "a key that is computed of nothing": (
        lambda _: {"keys": [sf.col("nothing") + 1]},
        ("cannot be computed from the input", "The columns of the input are"),
    ),
    "a key with the name of another column": (
        lambda _: {"keys": [(sf.col("n") % 2).alias("n")]},
        ("would be named 'n', as a column of the input", "alias()"),
    ),
    "a key of a map": ({"keys": "map"}, ("'map'", "cannot be part of a key", "Group by boolean")),
    "a key of a map in a struct": ({"keys": "struct"}, ("'struct.", "cannot be part of a key")),
    "a lane without a sequence": ({"lane": "key"}, ("only one of lane= and sequence= was given",)),
    "a sequence without a lane": ({"sequence": "n"}, ("only one of lane= and sequence= was given",)),
    "a sequence that is no number": ({"lane": "key", "sequence": "key"}, ("'key' is string, not a whole number",)),
    "a sequence that is not there": ({"lane": "key", "sequence": "offset"}, ("no column 'offset'",)),
    "complete output mode": ({"outputMode": "complete"}, ("outputMode='complete' is not supported", "append, update")),
    "an unknown output mode": ({"outputMode": "most"}, ("outputMode='most' is not supported",)),
    "no output mode": ({"outputMode": None}, ("outputMode='none' is not supported",)),
    "an unknown time mode": ({"timeMode": "lunar"}, ("timeMode='lunar' is not known", "processingTime or eventTime")),
    "event time without a watermark": (
        {"timeMode": "eventTime"},
        ("needs a column with a watermark", "withWatermark("),
    ),
    "an unknown option": ({"nulKeys": "bucket"}, ("unknown argument 'nulKeys'", "The options are: null_keys")),
    "an unknown policy for nulls": ({"null_keys": "skip"}, ("null_keys='skip' is not supported", "error, bucket")),
    "an unknown policy for watermarks": ({"watermark_policy": "mean"}, ("watermark_policy='mean' is not supported",)),
    "no time at all": ({"timeout_s": 0}, ("timeout_s=0 is not a duration",)),
    "a time that is text": ({"timeout_s": "5"}, ("timeout_s='5' is not a duration",)),
    "no bytes at all": ({"value_bytes_max": 0}, ("value_bytes_max=0 is not a size",)),
    "an output that cannot be read": ({"outputStructType": "key strin"}, ("'key strin' cannot be read",)),
    "an output that is no schema": ({"outputStructType": 5}, ("must be a StructType or a DDL string, not 5",)),
    "no processor": ({"statefulProcessor": "Moody"}, ("a pyspark StatefulProcessor is expected, not 'Moody'",)),
    "a native processor": ({"statefulProcessor": Count(Path("none"))}, ("Count object", "flock.process")),
    "a processor class": (
        {"statefulProcessor": Moody},
        ("a pyspark StatefulProcessor is expected, not <class", "Pass an instance of a subclass"),
    ),
    "a processor with a lock": (
        {"statefulProcessor": Locked()},
        ("cannot be pickled", "lock", "Open connections"),
    ),
    "a variable declared twice": ({"statefulProcessor": Twice(Path("none"))}, ("'total' is declared twice in init",)),
    "a variable of an unknown type": ({"statefulProcessor": Nameless(Path("none"))}, ("'n whatever' cannot be read",)),
    "real time in a session without its settings": (
        {"real_time": True},
        ("rows would wait for ever", "spark.buffer.size must be at most 256, and is not set", "godwit.tune("),
    ),
    "grouped rows": (lambda frame: {"frame": frame.groupBy("key")}, ("a DataFrame is expected, not GroupedData",)),
}


@pytest.fixture(scope="module")
def wide(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """A stream with columns that cannot be keys."""
    events = Feed(tmp_path_factory.mktemp("wide") / "feed", EVENTS).stream(spark)
    nested = {"list": "array(n)", "map": "map(key, n)", "struct": "struct(map(key, n))"}
    return events.withColumns({name: sf.expr(made) for name, made in nested.items()})


@pytest.mark.parametrize("wrong", DEFINITIONS)
def test_a_definition_with(wrong: str, flock: godwit.Flock, wide: DataFrame) -> None:
    changed, words = DEFINITIONS[wrong]
    changed = changed(wide) if callable(changed) else changed
    given: dict[str, Any] = {"frame": wide, "keys": "key", "outputStructType": OUTPUT, "statefulProcessor": MOODLESS}
    with pytest.raises(DefinitionError) as caught:
        flock.transformWithState(**{**given, "name": "refused", **changed})
    assert_said(str(caught.value), "GODWIT-DEFINITION", *words)
    assert caught.value.todo or "cannot be read" in str(caught.value), "says what to do next"
    with pytest.raises(DefinitionError, match="no operator of this name"):
        flock.state("refused")


def test_an_init_that_throws_is_told_at_definition_time(flock: godwit.Flock, wide: DataFrame) -> None:
    with pytest.raises(ProcessorFailed) as caught:
        flock.transformWithState(wide, "key", Throws(Path("none")), OUTPUT, name="refused")
    words = ("init raised KeyError: 'no settings'", "operator=refused", "when the operator is defined")
    assert_said(str(caught.value), "GODWIT-PROCESSOR-FAILED", *words)


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "../up", "ä", ".hidden", "x" * 101, "a@b", None, 5])
def test_an_operator_name_that_cannot_be(name: Any, flock: godwit.Flock, wide: DataFrame) -> None:
    with pytest.raises(DefinitionError, match=r"is not a name for an operator.*Use letters, digits"):
        flock.transformWithState(wide, "key", MOODLESS, OUTPUT, name=name)


def test_an_operator_name_used_again_for_another_kind_of_processor(case: Case) -> None:
    case.define()
    with pytest.raises(CheckpointMismatch, match=f"godwit.Processor now.*operator={case.name}.*another operator name"):
        case.define_native()
    case.add("a")
    assert case.run() == "", "the first is as it was"


def test_a_refused_definition_does_not_block_the_right_one(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor's module is there on the driver and not on hosts."""
    (case.root / "only_here.py").write_text("class Settings:\n    pass\n")
    monkeypatch.syspath_prepend(str(case.root))
    import only_here  # type: ignore[import-not-found]

    processor = Moody(case.mood)
    processor.settings = only_here.Settings()  # type: ignore[attr-defined]
    with pytest.raises(DefinitionError, match=f"cannot be loaded on a host.*only_here.*operator={case.name}.*pyFiles"):
        case.define(statefulProcessor=processor, outputStructType="key string")
    case.define()
    case.add("a")
    assert case.run() == ""
    assert case.state() == {"a": 1}


# -- flocks and checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hosts": 0}, "hosts=0 is not allowed"),
        ({"hosts": "2"}, "hosts='2' is not allowed"),
        ({"hosts": True}, "hosts=True is not allowed"),
        ({"memory_max_bytes": "1g"}, "memory_max_bytes='1g' is not allowed. Give bytes from 1 up, or None"),
        ({"memory_max_bytes": 0}, "memory_max_bytes=0 is not allowed"),
        ({"segment_bytes_max": -1}, "segment_bytes_max=-1 is not allowed. Give bytes from 1 up"),
        ({"groups": 0}, "groups=0 is not allowed"),
        ({"durability": "hope"}, "durability='hope' is not allowed. Give 'process' or 'disk'"),
        ({"on_gap": "jump"}, "on_gap='jump' is not allowed"),
        ({"take_over": "no"}, "take_over='no' is not allowed. Give True or False"),
        ({"wait_s": "60"}, "wait_s='60' is not allowed. Give seconds above 0"),
        ({"token": "two\nlines"}, "token= is not text that can be sent"),
        ({"token": ""}, "token= is not text that can be sent"),
        ({"checkpoint": None}, "checkpoint=None is not a path"),
        ({"bind": "203.0.113.7"}, "cannot listen on 203.0.113.7"),
        ({"spark": "local[2]"}, "a classic SparkSession is expected, not builtins.str"),
    ],
)
def test_a_flock_with_wrong_arguments(changed: dict[str, Any], said: str, spark: SparkSession, tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(DefinitionError) as caught:
        godwit.Flock(**{"spark": spark, "hosts": 1, "checkpoint": tmp_path / "ck", **changed})
    assert_said(str(caught.value), "GODWIT-DEFINITION", said)
    assert caught.value.todo
    assert {thread.name for thread in set(threading.enumerate()) - threads if "godwit" in thread.name} == set()


def test_more_hosts_than_there_are_slots(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotEnoughSlots, match=r"20 hosts need 21 task slots .* Spark has 6.*\. Use local\[2[23]\]"):
        godwit.Flock(spark, hosts=20, checkpoint=tmp_path / "ck")
    assert not (tmp_path / "ck").exists()


def test_a_stopped_session(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "_jsc", None)  # what stop() does
    with pytest.raises(DefinitionError, match=r"this SparkSession has been stopped\. Make a new session"):
        godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "ck")


def test_workers_with_a_python_that_lacks_godwit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "bare" / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(DefinitionError, match=r"bare/bin/python, in which Godwit is not installed\. .*PYSPARK_PYTHON"):
        godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "ck")
    assert not (tmp_path / "ck").exists(), "nothing was begun"


def test_a_flock_that_cannot_begin_lets_go_of_its_port(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = Controller.close

    def noted(controller: Controller) -> None:
        closed.append(controller.address)
        close(controller)

    def no_room(*_: Any, **__: Any) -> None:
        raise CheckpointUnusable("no room for owner.json")

    monkeypatch.setattr(Controller, "close", noted)
    monkeypatch.setattr(running_flock, "write_owner", no_room)
    with pytest.raises(CheckpointUnusable, match="no room"):
        godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "ck")
    assert len(closed) == 1


def test_directories_that_cannot_be_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    for path, kind, words in (
        (
            tmp_path / "file" / "ck",
            CheckpointUnusable,
            ("file/ck cannot be written", "Give a directory that this user"),
        ),
        (Path("/proc/godwit"), CheckpointUnusable, ("/proc/godwit cannot be written", "Give a directory")),
        (
            tmp_path / "spark",
            CheckpointMismatch,
            ("a flock (it has offsets)", "not the checkpointLocation"),
        ),
        (
            "s3a://bucket/ck",
            CheckpointUnusable,
            ("'s3a://bucket/ck' is not on a file system", "Give a directory"),
        ),
    ):
        with pytest.raises(kind) as caught:
            godwit.Flock(spark, hosts=1, checkpoint=path)
        assert_said(str(caught.value), kind.code, *words)


@pytest.fixture
def life(spark: SparkSession, tmp_path: Path) -> Iterator[Life]:
    life = Life(spark, tmp_path)
    yield life
    if life.case.flock is not None:
        life.case.flock.close()


def copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


@pytest.mark.long
def test_checkpoints_that_do_not_belong_together(life: Life) -> None:
    life.case.add("a", "b")
    assert life.run() == ""
    older = {path: copied(path, path.with_name(f"{path.name}-older")) for path in (life.godwit, life.spark_checkpoint)}
    life.case.add("a")
    life.case.add("a")
    assert life.run() == ""
    newer = {path: copied(path, path.with_name(f"{path.name}-newer")) for path in (life.godwit, life.spark_checkpoint)}
    life.case.add("b")
    # As far as Spark's own log tells, the newest batch that Godwit holds is not committed, and is not shown.
    one, two = {"a": 1, "b": 1}, {"a": 2, "b": 1}
    for godwit_from, spark_from, held, said, todo in (
        (None, newer, {}, "no Godwit state for the batches before it: Godwit's checkpoint is missing", "the same copy"),
        (newer, None, two, "this state belongs to query", "Start the query with the checkpointLocation it had"),
        (older, newer, one, "this state ends at batch 0", "on_gap='accept'"),
        (newer, older, two, "already holds batch 2: Spark's checkpoint is older than Godwit's", "from the same copy"),
    ):
        for path, source in ((life.godwit, godwit_from), (life.spark_checkpoint, spark_from)):
            shutil.rmtree(path)
            if source is not None:
                copied(source[path], path)
        with life.open():
            text = life.case.define().run()
            assert_said(text, "GODWIT-CHECKPOINT-MISMATCH", said, todo, "operator=count")
            assert life.case.state() == held
    copied(newer[life.spark_checkpoint], life.spark_checkpoint)
    assert life.run() == "", "what was refused is untouched: with what belongs to it, it goes on"
    assert life.counts() == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]


def test_a_checkpoint_used_with_another_definition(life: Life) -> None:
    life.case.add("a", "b")
    assert life.run() == ""
    life.case.add("a")

    class Narrower(Moody):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "n int, last string")

    stream = life.case.feed.stream(life.spark)
    with life.open():
        for changed, said in (
            ({"keys": "n"}, "key is (key string) in the checkpoint and (n int64) now"),
            ({"keys": ["key", "n"]}, "key is (key string) in the checkpoint and (key string, n int64) now"),
            ({"frame": stream.withColumn("key", sf.expr("length(key)"))}, "checkpoint and (key int32) now"),
            (
                {"statefulProcessor": Narrower(life.case.mood)},
                "state variable 'total': field 'n' is int64 in the checkpoint and int32 now: values may not fit",
            ),
            ({"timeMode": "processingTime"}, "timeMode is none in the checkpoint and processingTime now"),
        ):
            with pytest.raises(CheckpointMismatch) as caught:
                life.case.define(**changed)
            assert_said(str(caught.value), "GODWIT-CHECKPOINT-MISMATCH", said, "operator=count", "another")
        with pytest.raises(CheckpointMismatch, match=r"StatefulProcessor in the checkpoint and godwit.Processor now"):
            life.case.define_native()
        assert life.case.define().run() == "", "the right one goes on"
        assert life.case.state() == {"a": 2, "b": 1}
    assert life.counts() == [("a", 1), ("a", 2), ("b", 1)]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_damaged_newer_and_other_checkpoints_are_refused_whole(life: Life) -> None:
    for n in range(3):
        life.case.add("a", "b", first=10 * n)
    assert life.run() == ""
    life.case.add("a")
    flock_json = life.godwit / "flock.json"
    log = max((life.godwit / "hosts" / "host-0").glob("log-*"), key=lambda path: path.stat().st_size)
    good = {path: path.read_bytes() for path in (flock_json, log)}
    newer = json.dumps({**json.loads(good[flock_json]), "format": 99}).encode()
    middle = log.stat().st_size // 2

    def damage_middle() -> None:
        flip(log, middle)

    def newer_log() -> None:
        log.write_bytes(good[log][:7] + bytes([99]) + good[log][8:])

    def newer_flock() -> None:
        flock_json.write_bytes(newer)

    def cut_flock() -> None:
        flock_json.write_bytes(good[flock_json][:20])

    damages: tuple[tuple[Callable[[], None], type[godwit.GodwitError], tuple[str, ...]], ...] = (
        (damage_middle, CheckpointCorrupt, (log.name, f"file={log}", "operators=count", "host=host-0", "from a copy")),
        (newer_log, CheckpointVersion, (log.name, "format version 99", "reads up to 1", "or a newer one")),
        (newer_flock, CheckpointVersion, ("format 99, and this version reads up to 1", "or a newer one")),
        (cut_flock, CheckpointCorrupt, ("flock.json cannot be read", "from a copy")),
    )
    for damage, kind, words in damages:
        damage()
        with pytest.raises(kind) as caught:
            life.open()
        assert_said(str(caught.value), kind.code, *words)
        for path, content in good.items():
            path.write_bytes(content)
    assert life.run() == "", "once it is whole again, all goes on"
    assert life.counts() == [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2), ("b", 3)]


def test_a_closed_flock(life: Life) -> None:
    life.case.add("a")
    flock = life.open()
    life.case.define()
    assert repr(flock).endswith(": hosts host-0; operators count>"), repr(flock)
    flock.close()
    flock.close()
    assert repr(flock).endswith(", closed>"), repr(flock)
    for use in (life.case.define, lambda: flock.state("count"), flock.status):
        with pytest.raises(DefinitionError, match=r"this flock is closed\. Open a new Flock on the same checkpoint"):
            use()
    began = time.monotonic()
    text = life.case.run()
    assert_said(
        text, "GODWIT-STALE-GENERATION", "has been closed", "operator=count", "batch=0", "define the operator again"
    )
    assert time.monotonic() - began < 30, "a frame of a closed flock does not wait for hosts that never come"
    assert life.run() == ""
    assert life.counts() == [("a", 1)]


def test_a_flock_whose_session_was_stopped(flock: godwit.Flock, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(flock._spark.sparkContext, "_jsc", None)  # what stop() does
        for use in (flock.status, flock.measures, lambda: flock.state("count"), lambda: flock.scale(2)):
            with pytest.raises(DefinitionError, match=r"the SparkSession of this flock has been stopped\. Make a new"):
                use()


def test_a_wrong_token(flock: godwit.Flock) -> None:
    address = flock.status()["hosts"]["host-0"]["address"]
    client = Client(address, "guessed")
    with pytest.raises(WrongToken, match=f"{address} does not accept this token.*same value on all sides"):
        typed.ask(client, GetStatus())
    client.close()
    assert flock.status()["hosts"]["host-0"]["state"] == "serving"


# -- a full disk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that is soon full; needs the right to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "godwit-tiny", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system of our own")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (64 << 10, 4 << 10, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def test_a_disk_that_is_full_when_the_flock_opens(spark: SparkSession, tiny_disk: Path) -> None:
    ballast = fill(tiny_disk)
    with pytest.raises(CheckpointUnusable, match=r"disk/ck is full: No space left on device\. Free some space there"):
        godwit.Flock(spark, hosts=1, checkpoint=tiny_disk / "ck")
    ballast.unlink()
    godwit.Flock(spark, hosts=1, checkpoint=tiny_disk / "ck").close()


def test_a_disk_that_fills_up_while_the_query_runs(life: Life, tiny_disk: Path) -> None:
    life.godwit = tiny_disk / "godwit"
    life.case.add("a", "b")
    flock = life.open()
    assert life.case.define().run() == ""
    ballast = fill(tiny_disk)
    life.case.add("a", *(f"k{n}" for n in range(2000)))
    text = life.case.run()
    assert_said(
        text,
        "GODWIT-CHECKPOINT-UNUSABLE",
        "No space left on device",
        "operator=count",
        "batch=1",
        "host=host-0",
        "Make room",
    )
    ballast.unlink()
    wait_until(lambda: flock.status()["hosts"]["host-0"]["state"] == "serving", 60, "the host comes back by itself")
    assert life.case.run() == "", "the same flock and the same query go on"
    assert life.case.state() == {"a": 2, "b": 1, **{f"k{n}": 1 for n in range(2000)}}
    flock.close()
    life.case.add("b")
    assert life.run() == ""
    assert [count for key, count in life.counts() if key in "ab"] == [1, 2, 1, 2]
    assert len(life.counts()) == 2004

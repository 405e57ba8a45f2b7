"""Exactly what a user can import, how it is called, and that it is explained."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any, get_args, get_type_hints

import pytest
from pyspark.sql import GroupedData

import godwit
from godwit.control import step_order
from godwit.migration import BUILT_IN
from godwit.spark.change.move_options import RESTART, MoveOptions
from godwit.spark.define.operator_definition import OperatorOptions
from godwit.spark.grouped_frame import GroupedFrame

PUBLIC = set(
    "continue_spark_query spark_state continue_in_spark state_for_spark "
    "Flock GodwitError Measures Migration MigrationProgress MigrationSummary Outputs Processor Rows Status Times errors "
    "read_state rules tune tuning windows".split()
)
REQUIRED = inspect.Parameter.empty

# (name, kind, default) of what users pass: a change here is a change of the API.
POSITIONAL, KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
FLOCK = [
    ("spark", POSITIONAL, REQUIRED),
    ("hosts", POSITIONAL, 2),
    ("checkpoint", KEYWORD, REQUIRED),
    ("durability", KEYWORD, None),
    ("memory_max_bytes", KEYWORD, None),
    ("token", KEYWORD, None),
    ("bind", KEYWORD, "127.0.0.1"),
    ("groups", KEYWORD, 1024),
    ("on_gap", KEYWORD, "error"),
    ("segment_bytes_max", KEYWORD, 64 << 20),
    ("wait_s", KEYWORD, 60.0),
    ("recovery", KEYWORD, "storage"),
    ("disks", KEYWORD, None),
    ("backup", KEYWORD, False),
    ("start_from", KEYWORD, None),
    ("silent_s", KEYWORD, 1.0),
    ("take_over", KEYWORD, False),
]
STATEFUL = [
    ("frame", POSITIONAL, REQUIRED),
    ("keys", POSITIONAL, REQUIRED),
    ("statefulProcessor", POSITIONAL, REQUIRED),
    ("outputStructType", POSITIONAL, REQUIRED),
    ("outputMode", POSITIONAL, "append"),
    ("timeMode", POSITIONAL, "none"),
    ("initialState", POSITIONAL, None),
    ("eventTimeColumnName", POSITIONAL, ""),
    ("name", KEYWORD, REQUIRED),
]
NATIVE = [
    ("processor" if name == "statefulProcessor" else name, *rest)
    for name, *rest in STATEFUL
    if name not in ("outputStructType", "eventTimeColumnName")
]
SELECTION = [("keys", KEYWORD, None), ("groups", KEYWORD, None)]
AUTOSCALE = [
    ("rules", POSITIONAL, None),
    ("dry_run", KEYWORD, False),
    ("minimum", KEYWORD, 1),
    ("maximum", KEYWORD, None),
    ("every_s", KEYWORD, 1.0),
    ("warm", KEYWORD, 0),
]
MOVE_OPTIONS = set(
    "check gap_ms on_conflict order progress protocol rate_bytes_per_s restart side_by_side source step_units wait".split()
)
OPTIONS = set(
    "dead_letters lane null_keys partitions real_time sequence timeout_s value_bytes_max watermark_policy".split()
)


def parameters(function: Any) -> list[tuple[Any, ...]]:
    found = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return [(p.name, p.kind, p.default) for p in found if p.kind is not inspect.Parameter.VAR_KEYWORD]


def public_members(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


def test_exports_are_exactly_these() -> None:
    assert set(godwit.__all__) == PUBLIC
    assert len(godwit.__all__) == len(PUBLIC)
    for name in PUBLIC:
        assert hasattr(godwit, name)


def test_star_import_gives_what_is_exported() -> None:
    namespace: dict[str, Any] = {}
    exec("from godwit import *", namespace)
    assert set(namespace) - {"__builtins__"} == PUBLIC


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert godwit.__version__ == version("godwit")


def test_flock_has_exactly_these_members() -> None:
    assert set(public_members(godwit.Flock)) == {
        "autoscale",
        "checkpoint",
        "clear_dead_letters",
        "close",
        "dead_letters",
        "drain",
        "groupBy",
        "history",
        "last_error",
        "measures",
        "move",
        "process",
        "rebalance",
        "routing",
        "scale",
        "standby",
        "state",
        "status",
        "transformWithState",
        "transformWithStateInPandas",
    }


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (godwit.Flock, FLOCK),
        (godwit.Flock.transformWithState, STATEFUL),
        (godwit.Flock.transformWithStateInPandas, STATEFUL),
        (godwit.Flock.process, NATIVE),
        (GroupedFrame.transformWithState, STATEFUL[2:]),
        (GroupedFrame.transformWithStateInPandas, STATEFUL[2:]),
        (GroupedFrame.process, NATIVE[2:]),
        (godwit.Flock.last_error, []),
        (godwit.Flock.state, [("name", POSITIONAL, REQUIRED)]),
        (godwit.Flock.dead_letters, [("name", POSITIONAL, REQUIRED)]),
        (godwit.Flock.clear_dead_letters, [("name", POSITIONAL, REQUIRED)]),
        (godwit.Flock.status, []),
        (godwit.Flock.checkpoint, [("to", POSITIONAL, REQUIRED)]),
        (godwit.Flock.measures, []),
        (godwit.Flock.autoscale, AUTOSCALE),
        (godwit.Flock.scale, [("hosts", POSITIONAL, REQUIRED)]),
        (godwit.Flock.move, [("operator", POSITIONAL, REQUIRED), *SELECTION, ("to", KEYWORD, REQUIRED)]),
        (godwit.Flock.drain, [("host", POSITIONAL, REQUIRED)]),
        (godwit.Flock.rebalance, [("operator", POSITIONAL, REQUIRED)]),
        (godwit.Flock.standby, [("operator", POSITIONAL, REQUIRED), ("to", KEYWORD, REQUIRED), *SELECTION]),
        (godwit.Flock.routing, [("operator", POSITIONAL, REQUIRED)]),
        (godwit.Flock.history, [("operator", POSITIONAL, None)]),
        (godwit.Flock.close, []),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_signatures(function: Any, expected: list[tuple[Any, ...]]) -> None:
    assert parameters(function) == [tuple(row) for row in expected]


@pytest.mark.parametrize("flavour", ["transformWithState", "transformWithStateInPandas"])
def test_arguments_have_pysparks_names_order_and_defaults(flavour: str) -> None:
    """PySpark groups first: what it takes then follows our frame and keys."""
    theirs = {name: default for name, _, default in parameters(getattr(GroupedData, flavour))}
    shared = [row for row in STATEFUL if row[0] in theirs]
    order = [name for name in theirs if name in {row[0] for row in shared}]
    assert [row[0] for row in shared] == order
    assert {name for name in theirs if name not in {row[0] for row in shared}} == set()


def test_operator_options_are_exactly_these_and_explained() -> None:
    assert set(OperatorOptions.__annotations__) == OPTIONS
    for name in OPTIONS:
        assert name in (OperatorOptions.__doc__ or "")


def test_move_options_are_exactly_these_and_explained() -> None:
    assert set(MoveOptions.__annotations__) == MOVE_OPTIONS
    for name in MOVE_OPTIONS:
        assert f"{name}:" in (MoveOptions.__doc__ or "")


def test_everything_public_is_explained() -> None:
    missing = []
    for name in PUBLIC:
        thing = getattr(godwit, name)
        if not inspect.getdoc(thing):
            missing.append(name)
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            members = {n: m for n, m in public_members(thing).items() if inspect.isfunction(m)}
            missing += [f"{name}.{n}" for n, member in members.items() if not member.__doc__]
    allowed = {"Processor.process", "Processor.on_timer", "Processor.initialise"}  # the class says what they are for
    assert set(missing) <= allowed, missing


def test_flocks_arguments_are_explained() -> None:
    doc = godwit.Flock.__doc__ or ""
    undescribed = [name for name, *_ in FLOCK if f"{name}:" not in doc and f"{name}," not in doc and name != "spark"]
    assert undescribed == []


def test_windows_exports_are_explained_classes() -> None:
    for name in godwit.windows.__all__:
        assert inspect.getdoc(getattr(godwit.windows, name)), name


def test_every_error_can_be_caught_by_its_branch() -> None:
    for name in godwit.errors.__all__:
        assert issubclass(getattr(godwit.errors, name), godwit.GodwitError)


def test_import_starts_nothing_and_warns_of_nothing() -> None:
    code = "import threading, godwit; assert threading.active_count() == 1, threading.enumerate()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("flavour", ["transformWithState", "transformWithStateInPandas"])
def test_a_grouped_frame_takes_pysparks_arguments_in_pysparks_order(flavour: str) -> None:
    ours = [name for name, kind, _ in parameters(getattr(GroupedFrame, flavour)) if kind is POSITIONAL]
    theirs = [name for name, *_ in parameters(getattr(GroupedData, flavour))]
    assert ours == theirs


def test_camel_case_is_pysparks_alone() -> None:
    """Every other argument and option is in small letters."""
    theirs = set(inspect.signature(GroupedData.transformWithState).parameters)
    functions = [godwit.Flock, *public_members(godwit.Flock).values()]
    named = {name for function in functions if callable(function) for name, *_ in parameters(function)}
    named |= set(OperatorOptions.__annotations__) | set(MoveOptions.__annotations__)
    assert {name for name in named if name != name.lower()} <= theirs


def test_choices_are_literal_types() -> None:
    hints = get_type_hints(OperatorOptions) | get_type_hints(MoveOptions)
    assert get_args(hints["null_keys"]) == ("error", "bucket")
    assert get_args(hints["watermark_policy"]) == ("max", "min")
    assert set(get_args(hints["order"])) == set(step_order.ORDERS)
    assert set(get_args(get_args(hints["protocol"])[0])) == {*BUILT_IN, RESTART}

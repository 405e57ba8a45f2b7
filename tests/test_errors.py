"""Errors reach users from other processes: what they say, and that nothing of it is lost on the way."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from godwit import errors
from godwit.errors import BadInput, Bug, Fenced, GodwitError, Retryable

# Users match on codes and alert on them: a published code is neither changed nor given to another error.
PUBLISHED = {
    "GODWIT-BATCH-INCOMPLETE": "BatchIncomplete",
    "GODWIT-CHECKPOINT-CORRUPT": "CheckpointCorrupt",
    "GODWIT-CHECKPOINT-IN-USE": "CheckpointInUse",
    "GODWIT-CHECKPOINT-MISMATCH": "CheckpointMismatch",
    "GODWIT-CHECKPOINT-UNUSABLE": "CheckpointUnusable",
    "GODWIT-CHECKPOINT-VERSION": "CheckpointVersion",
    "GODWIT-DEFINITION": "DefinitionError",
    "GODWIT-FILE-SYSTEM-UNSAFE": "FileSystemUnsafe",
    "GODWIT-HOST-UNAVAILABLE": "HostUnavailable",
    "GODWIT-INVARIANT-BROKEN": "InvariantBroken",
    "GODWIT-MALFORMED-REQUEST": "MalformedRequest",
    "GODWIT-MOVE-CONFLICT": "MoveConflict",
    "GODWIT-NOT-ENOUGH-SLOTS": "NotEnoughSlots",
    "GODWIT-NOT-DETERMINISTIC": "NotDeterministic",
    "GODWIT-NOT-REPLAYABLE": "NotReplayable",
    "GODWIT-NULL-KEY": "NullKey",
    "GODWIT-OUTPUT-MISMATCH": "OutputMismatch",
    "GODWIT-PROCESSOR-FAILED": "ProcessorFailed",
    "GODWIT-PROCESSOR-TIMEOUT": "ProcessorTimeout",
    "GODWIT-ROW-KILLS-HOST": "RowKillsHost",
    "GODWIT-STALE-BATCH": "StaleBatch",
    "GODWIT-STALE-GENERATION": "StaleGeneration",
    "GODWIT-STALE-RUN": "StaleRun",
    "GODWIT-STATE-TOO-LARGE": "StateTooLarge",
    "GODWIT-STATE-TYPE": "StateTypeError",
    "GODWIT-STATE-UNCERTAIN": "StateUncertain",
    "GODWIT-UNKNOWN-KEY": "UnknownKey",
    "GODWIT-UNSUPPORTED-QUERY": "UnsupportedQuery",
    "GODWIT-WORK-LOST": "WorkLost",
    "GODWIT-WRONG-TOKEN": "WrongToken",
}
BRANCHES = (Retryable, Fenced, BadInput, Bug)


def leaves(root: type[GodwitError] = GodwitError) -> Iterator[type[GodwitError]]:
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    if not children:
        yield root
    for child in children:
        yield from leaves(child)


LEAVES = sorted(leaves(), key=lambda leaf: leaf.__name__)
every_leaf = pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)


def sample(kind: type[GodwitError]) -> GodwitError:
    return kind("state is gone", todo="Restore it", operator="speed", batch=7, share=0.5, durable=True)


def content(error: GodwitError) -> tuple[object, ...]:
    return type(error), error.message, error.todo, error.fields, str(error)


def test_a_notebook_shows_all_of_an_error() -> None:
    error = errors.NullKey("a key is null", todo="Drop such rows", operator="speed")
    assert repr(error) == "<NullKey: [GODWIT-NULL-KEY] a key is null (operator=speed). Drop such rows>"


def test_codes_are_those_published() -> None:
    assert {leaf.code: leaf.__name__ for leaf in LEAVES} == PUBLISHED


@every_leaf
def test_leaf_has_a_code_of_its_own(leaf: type[GodwitError]) -> None:
    assert "code" in vars(leaf), "inherits the code of its branch"
    assert re.fullmatch(r"GODWIT(-[A-Z]+)+", leaf.code)
    assert [other for other in LEAVES if other.code == leaf.code] == [leaf]
    assert errors.CODES[leaf.code] is leaf


@every_leaf
def test_leaf_says_what_the_caller_can_do(leaf: type[GodwitError]) -> None:
    assert [branch for branch in BRANCHES if issubclass(leaf, branch)] == [leaf.__mro__[1]]


def test_every_error_is_exported() -> None:
    public: list[type[GodwitError]] = [GodwitError, *BRANCHES, *LEAVES]
    assert set(errors.__all__) >= {error.__name__ for error in public}


@every_leaf
def test_pickle_keeps_everything(leaf: type[GodwitError]) -> None:
    error = sample(leaf).at(key=("C1", 3))
    back = pickle.loads(pickle.dumps(error))
    assert content(back) == content(error)


@every_leaf
def test_json_keeps_everything(leaf: type[GodwitError]) -> None:
    error = sample(leaf)
    back = errors.from_json(error.to_json())
    assert content(back) == content(error)


def test_json_keeps_the_text_of_values_it_has_no_form_for() -> None:
    error = errors.NullKey("no key", key=("C1", None), seen=frozenset({3}))
    back = errors.from_json(error.to_json())
    assert back.fields == {"key": "('C1', None)", "seen": "frozenset({3})"}
    assert str(back) == str(error)


def test_error_of_a_newer_version_is_still_readable() -> None:
    text = sample(errors.WorkLost).to_json().replace("GODWIT-WORK-LOST", "GODWIT-NOT-YET-INVENTED")
    back = errors.from_json(text)
    assert isinstance(back, GodwitError)
    assert "state is gone" in str(back)
    assert back.fields["operator"] == "speed"


@every_leaf
def test_text_names_code_fields_and_next_step(leaf: type[GodwitError]) -> None:
    text = str(sample(leaf))
    assert text.startswith(f"[{leaf.code}] state is gone")
    assert "operator=speed" in text
    assert "batch=7" in text
    assert text.endswith("Restore it")


def test_text_has_no_empty_parts() -> None:
    assert str(errors.StaleRun("a newer run exists")) == "[GODWIT-STALE-RUN] a newer run exists"


def test_outer_layer_adds_fields_but_does_not_overwrite_inner_ones() -> None:
    error = errors.StateTypeError("not a long", variable="count", key=("inner",))
    returned = error.at(key=("outer",), operator="speed", variable="other")
    assert returned is error
    assert error.fields == {"variable": "count", "key": ("inner",), "operator": "speed"}


def test_unknown_fields_are_left_out_and_may_be_filled_in_later() -> None:
    error = errors.ProcessorFailed("it threw", key=None, lane=None).at(lane=None, operator=None)
    assert error.fields == {}
    assert error.at(key=("late",)).fields == {"key": ("late",)}


def test_falsy_fields_are_kept() -> None:
    assert errors.WorkLost("gone", batch=0, lane="").fields == {"batch": 0, "lane": ""}

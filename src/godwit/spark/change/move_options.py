"""What a user asks of a flock that runs: checked and put into the words of plans, before anything is done."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict
from zoneinfo import ZoneInfo

import pyarrow as pa

from godwit.control import step_order
from godwit.errors import DefinitionError
from godwit.migration import PROTOCOLS
from godwit.model.units import Units
from godwit.runtime.processor.spec import OperatorSpec
from godwit.state.keys import KeyCodec

DEFAULT_PROTOCOL = "live"
RESTART = "restart"
SOURCES = ("live", "backup")


class MoveOptions(TypedDict, total=False):
    """How keys are moved, and whether the call waits for it.

    protocol: "live" (the default; the target copies and replays silently, needs deterministic processors), "live-unordered",
        "pause" (hold, ship, go on), "fetch" (rows first, state on demand), "push" (rows first, state by backlog), "standby"
        (hand over to copies that `Flock.standby` keeps), "restart" (stop the queries and the hosts, re-partition, start
        again), or one of your own that was registered with `godwit.migration.register`.
    order: "batched" (the default), "sudden" (all at once), "fluid" (one by one), "hot-first", "by-backlog".
    side_by_side: steps of one move that may be under way at once.
    step_units: groups (or keys) that are handed over together; follows the protocol unless given.
    rate_bytes_per_s: how much state each origin sends at most.
    gap_ms: a pause between steps, in which hosts work off what has waited.
    source: with "pause", where the bytes come from: "live" (the origin's memory) or "backup" (its changelog).
    check: with "live", whether what the target replays is compared with what the origin did.
    on_conflict: if another request moves some of the same keys, "queue" (the default; go when it has ended) or "refuse".
    restart: with "restart", what starts your query again; called without arguments, gives the query.
    wait: whether the call returns only when all is done (the default).
    progress: whether a bar is shown while it waits; by default if a person sees it.
    """

    protocol: str
    order: str
    side_by_side: int
    step_units: int
    rate_bytes_per_s: float
    gap_ms: float
    source: Literal["live", "backup"]
    check: bool
    on_conflict: Literal["queue", "refuse"]
    restart: Callable[[], Any]
    wait: bool
    progress: bool | None


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """`MoveOptions`, checked."""

    protocol: str = DEFAULT_PROTOCOL
    order: str = step_order.DEFAULT_ORDER
    side_by_side: int | None = None
    step_units: int | None = None
    rate_bytes_per_s: float | None = None
    gap_ms: float = 0.0
    source: str = "live"
    check: bool = False
    on_conflict: str = "queue"
    restart: Callable[[], Any] | None = None
    wait: bool = True
    progress: bool | None = None

    def for_host(self) -> dict[str, Any]:
        given = {
            "side_by_side": self.side_by_side,
            "rate_bytes_per_s": self.rate_bytes_per_s,
            "gap_ms": self.gap_ms,
            "source": self.source,
            "check": self.check,
        }
        return {name: value for name, value in given.items() if value is not None}

    def for_history(self) -> dict[str, Any]:
        plain = CheckedOptions().for_host()
        given = {name: value for name, value in self.for_host().items() if value != plain.get(name)}
        return {"protocol": self.protocol, "order": self.order, **given}


def checked_options(given: MoveOptions) -> CheckedOptions:
    unknown = [name for name in given if name not in MoveOptions.__annotations__]
    if unknown:
        raise DefinitionError(
            f"there is no option {unknown[0]!r}", todo=f"There are: {', '.join(MoveOptions.__annotations__)}"
        )
    options = CheckedOptions(**given)
    _check_choices(options)
    _check_numbers(options)
    _check_fitting(options)
    return options


def _check_choices(options: CheckedOptions) -> None:
    for name, value, allowed in (
        ("protocol", options.protocol, (*PROTOCOLS, RESTART)),
        ("order", options.order, tuple(step_order.ORDERS)),
        ("source", options.source, SOURCES),
        ("on_conflict", options.on_conflict, ("queue", "refuse")),
        ("check", options.check, (True, False)),
        ("wait", options.wait, (True, False)),
        ("progress", options.progress, (True, False, None)),
    ):
        if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
            raise DefinitionError(f"{name}={value!r} is not known", todo=f"Give one of: {', '.join(map(str, allowed))}")


def _check_numbers(options: CheckedOptions) -> None:
    for name, number, least, kinds in (
        ("side_by_side", options.side_by_side, 1, (int,)),
        ("step_units", options.step_units, 1, (int,)),
        ("rate_bytes_per_s", options.rate_bytes_per_s, 1, (int, float)),
        ("gap_ms", options.gap_ms, 0, (int, float)),
    ):
        if number is None:
            continue
        if not isinstance(number, kinds) or isinstance(number, bool) or not number >= least:
            raise DefinitionError(f"{name}={number!r} is not allowed", todo=f"Give a number from {least} up")


def _check_fitting(options: CheckedOptions) -> None:
    """Options that would be without effect are refused, rather than leave a user to wonder."""
    protocol = PROTOCOLS.get(options.protocol)
    for asked, what, todo in (
        (
            options.protocol == RESTART and not callable(options.restart),
            "protocol='restart' stops your query, and nothing was given that starts it again",
            "Pass restart=, a function without arguments that starts the query and returns it",
        ),
        (
            options.restart is not None and options.protocol != RESTART,
            f"restart= has no meaning with protocol={options.protocol!r}: the query goes on",
            "Leave it out, or pass protocol='restart'",
        ),
        (
            options.source == "backup" and options.protocol not in ("pause", RESTART),
            f"source='backup' has no meaning with protocol={options.protocol!r}",
            "Use it with protocol='pause'",
        ),
        (
            options.check and not (protocol is not None and protocol.deterministic),
            f"check=True has no meaning with protocol={options.protocol!r}, which replays nothing",
            "Use it with protocol='live' or 'live-unordered'",
        ),
        (
            options.step_units is not None and options.order in ("sudden", "fluid"),
            f"step_units has no meaning with order={options.order!r}, which says itself how large steps are",
            "Use it with order='batched', 'hot-first' or 'by-backlog'",
        ),
    ):
        if asked:
            raise DefinitionError(what, todo=todo)


# -- keys and groups as a user gives them ----------------------------------------------------------------------------


def chosen_units(spec: OperatorSpec, keys: Any, groups: Any, count: int) -> Units:
    """What is to be moved: keys or groups, one of the two."""
    if (keys is None) == (groups is None):
        raise DefinitionError(
            "keys= or groups= says what is meant, and only one of them",
            todo="Give keys as they are in the input, or numbers of groups",
            operator=spec.name,
        )
    return Units(groups_of(groups, count)) if keys is None else Units(keys=hashes_of(spec, keys))


def hashes_of(spec: OperatorSpec, keys: Any) -> frozenset[int]:
    """Routing hashes of keys as the user has them: values, or tuples where a key has several columns."""
    if not isinstance(keys, (list, tuple, set, frozenset)) or not keys:
        raise DefinitionError(f"keys={keys!r:.80} is not a list of keys", todo="Give one or more keys in a list")
    codec = KeyCodec(spec.key_schema, spec.tz)
    return frozenset(codec.route_hash(_stored(spec, codec, key)) for key in keys)


def _stored(spec: OperatorSpec, codec: KeyCodec, key: Any) -> tuple[Any, ...]:
    values = tuple(key) if isinstance(key, (tuple, list)) else (key,)
    fields = list(spec.key_schema)
    if len(values) != len(fields):
        named = ", ".join(field.name for field in fields)
        raise DefinitionError(
            f"key {key!r:.80} has {len(values)} values, the key of {spec.name!r} is ({named})",
            todo="Give a tuple with a value for each key column" if len(fields) > 1 else "Give plain values",
            operator=spec.name,
        )
    columns = [_column(spec, field, value) for field, value in zip(fields, values, strict=True)]
    return codec.from_arrow(columns)[0]


def _column(spec: OperatorSpec, field: pa.Field[Any], value: Any) -> pa.Array[Any]:
    kind: Any = field.type
    try:
        if value is None and spec.null_keys != "bucket":
            raise ValueError("null keys are refused by this operator")
        if pa.types.is_integer(kind) and isinstance(value, float) and not value.is_integer():
            raise ValueError("a fraction")
        if not _alike(kind, value):
            raise ValueError(f"of type {type(value).__name__}")
        if pa.types.is_timestamp(kind) and kind.tz is not None and _naive(value):
            value = value.replace(tzinfo=ZoneInfo(spec.tz))
        made: pa.Array[Any] = pa.array([value], kind)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise DefinitionError(
            f"{value!r:.80} is no value of key column {field.name!r} ({kind}): {error}",
            todo="Give keys as they are in the input",
            operator=spec.name,
        ) from error
    return made


def _alike(kind: Any, value: Any) -> bool:
    """Arrow takes bytes for text and text for bytes, which are other keys."""
    if value is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return isinstance(value, str)
    if value is not None and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return isinstance(value, (bytes, bytearray))
    return True


def _naive(value: Any) -> bool:
    return isinstance(value, dt.datetime) and value.tzinfo is None


def groups_of(asked: Any, count: int) -> frozenset[int]:
    if not isinstance(asked, (list, tuple, set, frozenset, range)) or not asked:
        raise DefinitionError(
            f"groups={asked!r:.80} is not a list of groups", todo="Give one or more numbers in a list"
        )
    wrong = [
        group for group in asked if isinstance(group, bool) or not isinstance(group, int) or not 0 <= group < count
    ]
    if wrong:
        raise DefinitionError(f"there is no group {wrong[0]!r}", todo=f"Give numbers from 0 to {count - 1}")
    return frozenset(asked)


def checked_host(name: Any, hosts: Sequence[str], what: str) -> str:
    if name not in hosts:
        raise DefinitionError(f"{what}{name!r} is no host of this flock", todo=f"There are: {', '.join(hosts)}")
    return str(name)

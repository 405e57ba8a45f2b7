"""Keys, groups and hosts as a user names them, checked and turned into units of a routing table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from godwit.errors import DefinitionError, HostUnavailable, UnknownKey
from godwit.model.units import Units
from godwit.runtime.messages import CheckKeys
from godwit.runtime.processor.spec import OperatorSpec
from godwit.spark.hosts.flock_hosts import Hosts
from godwit.state.keys import KeyCodec


def chosen_units(spec: OperatorSpec, keys: Any, groups: Any, count: int) -> Units:
    """The units that `keys=` or `groups=` names; exactly one of the two is given."""
    if (keys is None) == (groups is None):
        raise DefinitionError(
            "both keys= and groups= were given" if keys is not None else "neither keys= nor groups= was given",
            todo="Give one of them: keys= with keys as they are in the input, or groups= with numbers of groups",
            operator=spec.name,
        )
    return Units(groups_of(groups, count)) if keys is None else Units(keys=hashes_of(spec, keys))


def hashes_of(spec: OperatorSpec, keys: Any) -> frozenset[int]:
    """Routing hashes of keys, each given as a value, or as a tuple if the key has several columns."""
    if not isinstance(keys, (list, tuple, set, frozenset)) or not keys:
        raise DefinitionError(f"keys={keys!r:.80} is not a list of keys", todo="Give one or more keys in a list")
    codec = KeyCodec(spec.key_schema, spec.tz)
    return frozenset(codec.route_hash(_stored_key(spec, codec, key)) for key in keys)


def check_known(spec: OperatorSpec, keys: Sequence[Any], hosts: Hosts) -> None:
    """Refuse keys of which no host has state, most often keys that were written wrongly: their move would move nothing."""
    codec = KeyCodec(spec.key_schema, spec.tz)
    request = CheckKeys(spec.name, tuple(codec.pack(_stored_key(spec, codec, key)) for key in keys))
    known = [False] * len(keys)
    for host in hosts.names():
        try:
            known = [a or b for a, b in zip(known, hosts.ask_now(host, request).known, strict=True)]
        except HostUnavailable:
            return  # this host may have them
    unknown = [key for key, seen in zip(keys, known, strict=True) if not seen]
    if unknown:
        more = f" and {len(unknown) - 1} more of these keys" if len(unknown) > 1 else ""
        raise UnknownKey(
            f"no host has state of key {unknown[0]!r:.80}{more}, so there is nothing to move",
            todo="Give keys as they are in the input, after their first row has come; flock.state() shows the keys",
            operator=spec.name,
            key=unknown[0],
        )


def _stored_key(spec: OperatorSpec, codec: KeyCodec, key: Any) -> tuple[Any, ...]:
    values = tuple(key) if isinstance(key, (tuple, list)) else (key,)
    fields = list(spec.key_schema)
    if len(values) != len(fields):
        named = ", ".join(field.name for field in fields)
        raise DefinitionError(
            f"key {key!r:.80} has {len(values)} values, and the key columns of {spec.name!r} are ({named})",
            todo="Give a tuple with a value for each key column"
            if len(fields) > 1
            else "Give plain values, not tuples",
            operator=spec.name,
        )
    columns = [_column(spec, field, value) for field, value in zip(fields, values, strict=True)]
    return codec.from_arrow(columns)[0]


def _column(spec: OperatorSpec, field: pa.Field[Any], value: Any) -> pa.Array[Any]:
    kind: Any = field.type
    try:
        if value is None and spec.null_keys != "bucket":
            raise ValueError("the operator refuses null keys")
        if pa.types.is_integer(kind) and isinstance(value, float) and not value.is_integer():
            raise ValueError("the number has a fraction")
        if not _same_kind(kind, value):
            raise ValueError(f"it is of type {type(value).__name__}")
        if pa.types.is_timestamp(kind) and kind.tz is not None and _naive(value):
            value = value.replace(tzinfo=ZoneInfo(spec.tz))
        column: pa.Array[Any] = pa.array([value], kind)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise DefinitionError(
            f"{value!r:.80} cannot be a value of key column {field.name!r} ({kind}): {error}",
            todo="Give keys as they are in the input",
            operator=spec.name,
        ) from error
    return column


def _same_kind(kind: Any, value: Any) -> bool:
    """Arrow converts between bytes and text, but these are different keys."""
    if value is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return isinstance(value, str)
    if value is not None and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return isinstance(value, (bytes, bytearray))
    return True


def _naive(value: Any) -> bool:
    return isinstance(value, dt.datetime) and value.tzinfo is None


def groups_of(groups: Any, count: int) -> frozenset[int]:
    if not isinstance(groups, (list, tuple, set, frozenset, range)) or not groups:
        raise DefinitionError(
            f"groups={groups!r:.80} is not a list of groups", todo="Give a list with one or more numbers of groups"
        )
    wrong = [
        group for group in groups if isinstance(group, bool) or not isinstance(group, int) or not 0 <= group < count
    ]
    if wrong:
        raise DefinitionError(f"group {wrong[0]!r} does not exist", todo=f"Give numbers from 0 to {count - 1}")
    return frozenset(groups)


def checked_host(name: Any, hosts: Sequence[str], what: str) -> str:
    if name not in hosts:
        raise DefinitionError(f"{what}{name!r} is not a host of this flock", todo=f"The hosts are: {', '.join(hosts)}")
    return str(name)

"""Who gets what a lost host owned: one small file beside the hosts' directories, written once, and a takeover's commit point.

It stands for the `released` that the host can no longer write. As long as it is not there, whoever starts the host anew owns
everything; from then on the heirs do, and the host is never started again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from godwit.errors import CheckpointCorrupt, StaleGeneration, WorkLost
from godwit.model.ownership import Ownership
from godwit.model.units import Units
from godwit.state.damage import corrupt, unusable
from godwit.state.documents import GARBLED, make_directory, replace_document
from godwit.state.fencing import listed

Shares = Mapping[str, Mapping[str, Units]]  # by heir, by operator


def write_will(
    directory: Path,
    name: str,
    shares: Shares,
    ends: Mapping[int, int],
    owned: Mapping[str, Ownership] = MappingProxyType({}),
) -> None:
    """Durable when this returns, whatever the durability of the rest. `ends`: how far the log was read, by generation.

    `owned`: what the lost host's log says that it owned, by operator.
    """
    heirs = {heir: {op: units.to_dict() for op, units in share.items()} for heir, share in shares.items()}
    path = _path(directory)
    try:
        make_directory(path.parent)
    except OSError as error:
        raise unusable("create", path.parent, error) from error
    last = {operator: ownership.to_dict() for operator, ownership in owned.items()}
    replace_document(path, json.dumps({"name": name, "heirs": heirs, "ends": list(ends.items()), "owned": last}))


def _path(directory: Path) -> Path:
    """Not in the lost host's directory, which may be lost too."""
    return directory.parent.parent / "wills" / f"{directory.name}.json"


@dataclass(frozen=True, slots=True)
class _Will:
    """`ends`: how far the log was read, by generation; None if an earlier version wrote it, which did not tell.

    `owned`: what the host owned last, by operator; empty if an earlier version wrote it.
    """

    name: str
    heirs: dict[str, dict[str, Units]]
    ends: dict[int, int] | None
    owned: dict[str, Ownership]


def read_will(directory: Path) -> tuple[str, dict[str, dict[str, Units]]] | None:
    found = _read(directory)
    return None if found is None else (found.name, found.heirs)


def last_owned(directory: Path, operator: str) -> Ownership | None:
    """What a host owned of the operator when it was lost for good; None if it was not, or nothing is known of that."""
    found = _read(directory)
    return None if found is None else found.owned.get(operator)


def _read(directory: Path) -> _Will | None:
    try:
        found: dict[str, Any] = json.loads(_path(directory).read_text())
        shares = found["heirs"].items()
        heirs = {heir: {op: Units.from_dict(units) for op, units in share.items()} for heir, share in shares}
        owned = {op: Ownership.from_dict(directory.name, own) for op, own in found.get("owned", {}).items()}
        return _Will(found["name"], heirs, dict(found["ends"]) if "ends" in found else None, owned)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable("read", _path(directory), error) from error
    except GARBLED as error:
        raise corrupt(_path(directory), f"it does not say who owns what {directory.name} had ({error})") from error


def check_inherited(directory: Path, answered: Mapping[int, int]) -> None:
    """All that the lost host has answered (by generation, up to which lsn) was in the log that its heirs have read.

    A host that has left in another way has no will: what it had was handed over by itself.
    """
    found = _read(directory) if answered else None
    if found is None or found.ends is None:
        return
    ends = found.ends
    if any(lsn >= ends.get(generation, 0) for generation, lsn in answered.items()):
        raise WorkLost(
            "the host was lost with work that it had answered, which its heirs have not got, so this attempt must be repeated",
            host=directory.name,
        )


def batch_lost(host: str, operator: str, last: int, committed: int) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"the log of {host} ends in batch {last}, but batch {committed} was committed after it: the end of the log is lost, "
        "and with it state that Spark relies on",
        todo="Start from a copy of both checkpoints (start_from=); durability='disk' keeps what a machine would lose",
        operator=operator,
        host=host,
    )


def check_alive(directory: Path) -> None:
    """By what is listed too: that there is no will may be known from a cache, of the time when an heir looked for it."""
    path = _path(directory)
    if read_will(directory) is not None or path.name in listed(path.parent):
        raise StaleGeneration(
            "this host was lost, and others own what it had",
            todo="Nothing: it is not started again",
            host=directory.name,
        )


def step_name(will: str, operator: str) -> str:
    """As the heir has it among what it has prepared: a migration of one step."""
    return f"{migration_name(will, operator)}/0"


def migration_name(will: str, operator: str) -> str:
    return f"{will}.{operator}"

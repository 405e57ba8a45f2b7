"""The will of a lost host: one small file, written once, that names its heirs and their units. It commits a takeover.

The will takes the place of the `released` record, which the lost host can no longer write. Without a will, the next generation
of the lost host owns everything; with a will, the heirs own their shares, and the host is never started again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from godwit.errors import CheckpointCorrupt, StaleGeneration, WorkLost
from godwit.model.ownership import Ownership, step_name
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
    """The will is durable when this returns, whatever the flock's `durability`.

    `ends`: the end of the log as the heirs have read it, by generation.
    `owned`: the lost host's ownership by its log, by operator.
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
    """Outside of the lost host's directory, because that directory may be lost too."""
    return directory.parent.parent / "wills" / f"{directory.name}.json"


@dataclass(frozen=True, slots=True)
class _Will:
    """`ends`: the end of the log as the heirs have read it, by generation; None in a will that an earlier version wrote.

    `owned`: the host's last ownership, by operator; empty in a will that an earlier version wrote.
    """

    name: str
    heirs: dict[str, dict[str, Units]]
    ends: dict[int, int] | None
    owned: dict[str, Ownership]


def read_will(directory: Path) -> tuple[str, dict[str, dict[str, Units]]] | None:
    will = _read(directory)
    return None if will is None else (will.name, will.heirs)


def last_owned(directory: Path, operator: str) -> Ownership | None:
    """The host's ownership of the operator when the host was lost for good; None if no will has it."""
    will = _read(directory)
    return None if will is None else will.owned.get(operator)


def _read(directory: Path) -> _Will | None:
    try:
        document: dict[str, Any] = json.loads(_path(directory).read_text())
        shares = document["heirs"].items()
        heirs = {heir: {op: Units.from_dict(units) for op, units in share.items()} for heir, share in shares}
        owned = {op: Ownership.from_dict(directory.name, own) for op, own in document.get("owned", {}).items()}
        return _Will(document["name"], heirs, dict(document["ends"]) if "ends" in document else None, owned)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable("read", _path(directory), error) from error
    except GARBLED as error:
        raise corrupt(_path(directory), f"it does not name the heirs of {directory.name} ({error})") from error


def check_inherited(directory: Path, answered: Mapping[int, int]) -> None:
    """Raise if the lost host has answered work that is not in the log as its heirs have read it.

    `answered`: the last lsn answered, by generation. A host that left by a drain has no will: it handed over its units itself.
    """
    will = _read(directory) if answered else None
    if will is None or will.ends is None:
        return
    ends = will.ends
    if any(lsn >= ends.get(generation, 0) for generation, lsn in answered.items()):
        raise WorkLost(
            "the host was lost together with work that it had answered and that its heirs do not have: "
            "this attempt must be repeated",
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
    """Raise if the host has a will.

    The directory is listed too: a network file system may answer from its cache that the will is absent.
    """
    path = _path(directory)
    if read_will(directory) is not None or path.name in listed(path.parent):
        raise StaleGeneration(
            "this host was lost, and other hosts own its keys now",
            todo="Nothing is to be done: this host is not started again",
            host=directory.name,
        )


def takeover_step(will: str, operator: str) -> str:
    """The name of the takeover among the heir's prepared steps: a takeover is a migration of one step."""
    return step_name(migration_name(will, operator), 0)


def migration_name(will: str, operator: str) -> str:
    return f"{will}.{operator}"

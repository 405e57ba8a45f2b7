"""Whether a checkpoint may be opened: not while another flock has it open, unless `take_over` ends that flock.

The owner file of a killed flock looks like that of a running one, so the flock is asked. Safety does not depend on the answer:
a running flock that did not answer is fenced at its next write, as by `take_over`.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Final

from godwit.errors import CheckpointInUse
from godwit.runtime.liveness.presence import Owner, ask_owner, read_owner
from godwit.spark.checkpoint.history import now_text

_OPENED_ANYWAY: Final = {
    "unreachable": "its machine could not be reached",
    "elsewhere": "it is on another machine and listens only there, so it could not be asked",
}


def owner_of_this_process(application: str, presence: str) -> dict[str, Any]:
    """The fields of the owner file that describe this process."""
    who: dict[str, Any] = {"machine": socket.gethostname(), "pid": os.getpid(), "since": now_text()}
    return who | {"application": application, "presence": presence}


def check_not_in_use(checkpoint: Path, take_over: bool) -> str:
    """A line for the history about the flock that had the checkpoint; empty if it was closed. Refuses a checkpoint in use."""
    owner = read_owner(checkpoint)
    if owner is None or owner.closed:
        return ""
    answer = ask_owner(owner)
    if answer in ("lives", "silent"):
        if not take_over:
            raise _in_use(checkpoint, owner, answer == "silent")
        return f"taken over from {owner}"
    doubt = _OPENED_ANYWAY.get(answer)
    return "" if doubt is None else f"{owner} had not closed it; {doubt}"


def _in_use(checkpoint: Path, owner: Owner, silent: bool) -> CheckpointInUse:
    hangs = ", which does not answer: its process is stopped or hangs" if silent else ""
    return CheckpointInUse(
        f"the checkpoint {checkpoint} is in use by {owner}{hangs}",
        todo="Close that flock, or pass take_over=True, which ends it; to read state only, use godwit.read_state",
        checkpoint=str(checkpoint),
    )

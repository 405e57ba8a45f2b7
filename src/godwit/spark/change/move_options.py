"""The options of `Flock.move`, `scale` and the like, checked before anything happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from godwit.control import step_order
from godwit.errors import DefinitionError
from godwit.migration import PROTOCOLS

DEFAULT_PROTOCOL = "live"
RESTART = "restart"
SOURCES = ("live", "backup")
BuiltInProtocol = Literal["live", "live-unordered", "standby", "push", "fetch", "pause", "restart"]
Order = Literal["batched", "sudden", "fluid", "hot-first", "by-backlog"]


class MoveOptions(TypedDict, total=False):
    """How keys are moved, and whether the call waits until they are.

    protocol: "live" (the default; the target copies and replays silently, needs deterministic processors), "live-unordered",
        "pause" (hold, ship, go on), "fetch" (rows first, state on demand), "push" (rows first, state by backlog), "standby"
        (hand over to copies that `Flock.standby` keeps), "restart" (stop the queries and the hosts, re-partition, start
        again), or one of your own that was registered with `godwit.migration.register`.
    order: "batched" (the default), "sudden" (all at once), "fluid" (one by one), "hot-first", "by-backlog".
    side_by_side: the number of steps of a move that may be under way at the same time.
    step_units: the number of groups (or keys) that are handed over together; the default depends on the protocol.
    rate_bytes_per_s: the limit for the state that each origin sends.
    gap_ms: a pause between steps, in which hosts apply the rows that have waited.
    source: with "pause", from where the origin reads the state: "live" (its memory) or "backup" (its changelog).
    check: with "live", whether the replay of the target is compared with the results of the origin.
    on_conflict: if another request moves some of the same keys, "queue" (the default; wait for its end) or "refuse".
    restart: with "restart", a function without arguments that starts your query again and returns it.
    wait: whether the call returns only when the request has ended (the default).
    progress: whether a progress bar is shown during the wait; by default if stderr is a terminal.
    """

    protocol: BuiltInProtocol | str
    order: Order
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
            f"there is no option {unknown[0]!r}", todo=f"The options are: {', '.join(MoveOptions.__annotations__)}"
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
    """An option that would have no effect is refused, so that its user learns of it."""
    protocol = PROTOCOLS.get(options.protocol)
    for refused, message, todo in (
        (
            options.protocol == RESTART and not callable(options.restart),
            "protocol='restart' stops your query, and restart= was not given to start it again",
            "Pass restart=, a function without arguments that starts the query and returns it",
        ),
        (
            options.restart is not None and options.protocol != RESTART,
            f"restart= has no effect with protocol={options.protocol!r}, which does not stop the query",
            "Leave restart= out, or pass protocol='restart'",
        ),
        (
            options.source == "backup" and options.protocol not in ("pause", RESTART),
            f"source='backup' has no effect with protocol={options.protocol!r}",
            "Use it with protocol='pause'",
        ),
        (
            options.check and not (protocol is not None and protocol.deterministic),
            f"check=True has no effect with protocol={options.protocol!r}, which replays no rows",
            "Use it with protocol='live' or 'live-unordered'",
        ),
        (
            options.step_units is not None and options.order in ("sudden", "fluid"),
            f"step_units has no effect with order={options.order!r}, which fixes the size of steps",
            "Use it with order='batched', 'hot-first' or 'by-backlog'",
        ),
    ):
        if refused:
            raise DefinitionError(message, todo=todo)

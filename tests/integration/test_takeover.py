"""A host is lost for good, and others take over its keys while rows flow: same outputs and state, whoever is killed when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import GodwitError, HostUnavailable, StaleGeneration
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.host.host import Host
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.liveness.wills import read_will
from godwit.runtime.messages import GetStatus
from godwit.runtime.router.routing_table import read_routing, write_routing
from godwit.runtime.takeover import rescue
from godwit.runtime.takeover.rescue import Inherited, LostHost, Shares, divide, fence, hand_to_heirs
from godwit.transport import typed
from godwit.transport.typed import Reply
from tests.integration.nest import OPERATOR, Nest, rows
from tests.integration.test_migration import Flow, ended, groups_of, migrate, report
from tests.spark.flocks import wait_until


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Nest(tmp_path / "godwit", hosts=3).start_all()
    write_routing(str(nest.checkpoint), OPERATOR, nest.routing)
    yield nest
    nest.close()


def ask(nest: Nest, host: str, request: typed.Request[Reply]) -> Reply:
    client = nest.client(host)
    try:
        return typed.ask(client, request)
    finally:
        client.close()


def estate_of(nest: Nest, lost: str) -> LostHost:
    return fence(host_directory(str(nest.checkpoint), lost), "process")


def follow(nest: Nest, estate: LostHost, told: dict[str, Inherited]) -> None:
    """What the driver does with the tables."""
    table = read_routing(str(nest.checkpoint), OPERATOR)
    assert table is not None
    for heir, answer in told.items():
        table = table.moved(answer.served[OPERATOR], heir)
    write_routing(str(nest.checkpoint), OPERATOR, table.parted([estate.lost]))
    nest.routing = table.parted([estate.lost])


def taken_over(nest: Nest, lost: str, heirs: list[str], copies: dict[str, dict[str, Units]]) -> dict[str, Inherited]:
    estate = estate_of(nest, lost)
    owned = {operator: own.mine() for operator, own in estate.owned.items()}
    told = hand_to_heirs(estate, divide(owned, heirs, copies), lambda host, request: ask(nest, host, request))
    follow(nest, estate, told)
    return told


def copies_stand(nest: Nest, part: int = 1) -> list[int]:
    """Of so much of what host-2 owns, on host-1; gives the groups."""
    groups = groups_of(nest, "host-2")[::part]
    migrate(nest, "host-2", "host-1", "standby", [{"groups": groups, "keys": []}])
    wait_until(lambda: "copied" in dict(report(nest, "host-2").phases), what="they stand")
    return groups


def check(nest: Nest, flow: Flow) -> None:
    """Every key has given 1, 2, 3 ... all the way, and that is what it holds."""
    flow.end()
    assert nest.state(flow.batch - 1) == flow.seen.counts


def test_two_hosts_take_over_a_third(nest: Nest) -> None:
    flow = Flow(nest)
    had = groups_of(nest, "host-2")
    nest.kill("host-2")
    told = taken_over(nest, "host-2", ["host-0", "host-1"], {})
    flow.wait_batches(3)
    check(nest, flow)
    for heir in ("host-0", "host-1"):
        gained = {unit.id for unit in told[heir].served[OPERATOR]}
        assert gained <= set(had)
        assert gained <= set(groups_of(nest, heir))


@pytest.mark.parametrize(
    ("part", "by_copies"),
    [
        pytest.param(1, {"host-1": True}, id="all-of-it"),
        pytest.param(
            2, {"host-0": False, "host-1": True}, id="a-half-and-the-rest-from-the-log", marks=pytest.mark.long
        ),
        pytest.param(2, {"host-1": False}, id="a-half-is-not-enough", marks=pytest.mark.long),
    ],
)
def test_copies_of_a_standby_take_over(nest: Nest, part: int, by_copies: dict[str, bool]) -> None:
    """What they are of, if others take the rest. Where the only heir must take over more, they are in nobody's way."""
    flow = Flow(nest)
    copied = copies_stand(nest, part)
    flow.wait_batches(2)
    nest.kill("host-2")
    told = taken_over(nest, "host-2", list(by_copies), {OPERATOR: {"host-1": Units(frozenset(copied))}})
    assert {heir: answer.by_copies for heir, answer in told.items()} == by_copies
    flow.wait_batches(3)
    check(nest, flow)


def test_copies_are_dropped_when_their_origin_is_back(nest: Nest) -> None:
    flow = Flow(nest)
    copies_stand(nest)
    nest.kill("host-2")
    nest.start("host-2")
    keys = len(nest.state(flow.batch))

    def held() -> int:
        status = [nest.ask(host, GetStatus()).instances[0]["keys"] for host in nest.routing.hosts]
        return sum(status)

    wait_until(lambda: held() <= max(keys, len(flow.seen.counts)), what="the copies are gone")
    flow.wait_batches(2)
    check(nest, flow)


@pytest.mark.long
def test_without_a_will_the_host_starts_again_and_owns_everything(nest: Nest) -> None:
    """The heirs have prepared, and the driver has gone before it has written anything."""
    flow = Flow(nest)
    had = groups_of(nest, "host-2")
    nest.kill("host-2")
    estate = estate_of(nest, "host-2")
    shares = divide({OPERATOR: estate.owned[OPERATOR].mine()}, ["host-0", "host-1"], {})
    inherit(nest, estate, shares)
    nest.start("host-2")
    for heir in shares:
        ask(nest, heir, messages.AbandonTakeover(estate.name))
    flow.wait_batches(2)
    check(nest, flow)
    assert groups_of(nest, "host-2") == had


def inherit(nest: Nest, estate: LostHost, shares: Shares) -> None:
    for heir, share in shares.items():
        ask(nest, heir, rescue.prepare_takeover(share, {OPERATOR: "host-0"}, estate))
    for heir in shares:
        wait_until(
            lambda heir=heir: ask(nest, heir, messages.ReportTakeover(estate.name, 0.5)).state == "prepared",
            what="it is prepared",
        )


def test_an_heir_that_fails_is_in_nobodys_way_though_nobody_tells_it_to_give_up(nest: Nest) -> None:
    """It has read all of the log but its end, which is not where it was said to be; whoever asked it is gone by then."""
    flow = Flow(nest)
    flow.wait_batches(2)
    nest.kill("host-2")
    estate = estate_of(nest, "host-2")
    beyond = replace(estate, next_lsn=estate.next_lsn + 1)
    share = {OPERATOR: estate.owned[OPERATOR].mine()}
    ask(nest, "host-1", rescue.prepare_takeover(share, {OPERATOR: "host-1"}, beyond))
    told = wait_until(lambda: _failed(nest, estate), what="it has failed")
    assert "the log ends before" in str(told.failure)
    nest.start("host-2")
    migrate(nest, "host-2", "host-1", "live", [share[OPERATOR].to_dict()])
    assert len(ended(nest, "host-2").moved) == len(share[OPERATOR])
    flow.wait_batches(2)
    check(nest, flow)


def _failed(nest: Nest, estate: LostHost) -> messages.TakeoverReport | None:
    told = ask(nest, "host-1", messages.ReportTakeover(estate.name))
    return told if told.state == "failed" else None


@pytest.mark.parametrize("written", [True, False], ids=["after-the-will", "before-the-will"])
def test_an_heir_is_killed_too(nest: Nest, written: bool) -> None:
    """It has prepared; whether it owns what it has prepared is what the will says, or the lost host when it is back."""
    flow = Flow(nest)
    nest.kill("host-2")
    estate = estate_of(nest, "host-2")
    killed = []

    def asked(host: str, request: typed.Request[Reply]) -> Reply:
        """The first heir dies before it can do what it is asked here."""
        if isinstance(request, messages.CompleteTakeover if written else messages.ReportTakeover) and not killed:
            ask(nest, host, messages.ReportTakeover(estate.name, 10.0))
            killed.append(host)
            nest.kill(host)
            nest.start(host)
        return ask(nest, host, request)

    shares = divide({OPERATOR: estate.owned[OPERATOR].mine()}, ["host-0", "host-1"], {})
    if written:
        follow(nest, estate, hand_to_heirs(estate, shares, asked))
        assert read_will(estate.directory) is not None
        with pytest.raises(GodwitError):
            nest_start_again(nest, "host-2")
    else:
        with pytest.raises(HostUnavailable):
            hand_to_heirs(estate, shares, asked)
        assert read_will(estate.directory) is None
        nest.start("host-2")
    flow.wait_batches(3)
    check(nest, flow)


def nest_start_again(nest: Nest, host: str) -> None:
    from godwit.runtime.host.host import Host

    Host(nest.config(host), lambda: 0).run()


def test_a_host_that_is_only_thought_lost_is_fenced(nest: Nest) -> None:
    """It goes on for as long as nobody asks it for anything; it has answered nothing that its heirs do not know."""
    flow = Flow(nest)
    told = taken_over(nest, "host-2", ["host-0", "host-1"], {})
    assert sum(len(answer.served[OPERATOR]) for answer in told.values())
    flow.wait_batches(3)
    check(nest, flow)
    assert nest.process("host-2").wait(20) != 0, "it has found out by itself"


def test_a_host_that_is_given_up_for_lost_while_it_starts_does_not_serve(
    nest: Nest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked for its will before there was one, and opens its log when others own what is in it."""
    opened = Host._open_log

    def late(host: Host) -> Any:
        taken_over(nest, "host-2", ["host-0", "host-1"], {})
        return opened(host)

    nest.kill("host-2")
    monkeypatch.setattr(Host, "_open_log", late)
    with pytest.raises(StaleGeneration, match="other hosts own its keys"):
        Host(nest.config("host-2"), lambda: 0).run()
    assert nest.lease("host-2") is None


def begin_anew(nest: Nest, **changed: Any) -> None:
    """As the driver defines an operator whose state has ended with its query."""
    spec = replace(nest.operator.spec, life=nest.operator.spec.life + 1, **changed)
    nest.operator = replace(nest.operator, spec=spec)
    nest.controller.add(nest.operator)
    for host in nest.routing.hosts:
        nest.define(host)


def test_heirs_take_over_nothing_that_the_operator_had_before_it_began_anew(nest: Nest) -> None:
    """Before: the log of the lost host still had state of the earlier life, and the heirs took it for state of now."""
    for batch in range(3):
        list(nest.run(batch, "0", [rows(range(100), 50)]))
    begin_anew(nest)
    nest.runs = {"run-2"}
    list(nest.run(0, "0", [rows(range(10), 50)], run="run-2"))
    nest.kill("host-2")
    taken_over(nest, "host-2", ["host-0", "host-1"], {})
    assert nest.state(0) == dict.fromkeys(range(10), 1)
    list(nest.run(1, "0", [rows(range(20), 50)], run="run-2"))
    assert nest.state(1) == dict.fromkeys(range(10), 2) | dict.fromkeys(range(10, 20), 1)

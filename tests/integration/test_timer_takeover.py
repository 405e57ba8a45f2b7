"""A host is lost while timers fire: others take over, and every timer fires once, before the rows of its key."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from godwit.errors import GodwitError, HostUnavailable
from godwit.model.units import Units
from godwit.runtime import messages
from godwit.runtime.takeover.rescue import divide, hand_to_heirs
from godwit.transport import typed
from godwit.transport.typed import Reply
from tests.integration.bells import Belfry, Tasks
from tests.integration.nest import OPERATOR
from tests.integration.test_migration import groups_of, migrate, report
from tests.spark.flocks import wait_until

TAKEOVERS = 50  # of each seed: 200 in all
HOSTS = 11  # of one nest; the last of them has no heir


@pytest.fixture
def belfry(tmp_path: Path) -> Iterator[Belfry]:
    belfry = Belfry(tmp_path, hosts=3)
    belfry.run()
    belfry.run()
    yield belfry
    belfry.nest.close()


def others(belfry: Belfry, lost: str) -> list[str]:
    return [host for host in belfry.nest.routing.hosts if host != lost]


def lose_firing(belfry: Belfry, lost: str) -> Tasks:
    """The others have fired the timers of the batch, the lost one is about to. Gives the tasks of the batch."""
    belfry.hold(lost)
    tasks = belfry.begin()
    belfry.wait_held(lost)
    belfry.wait_fired(others(belfry, lost))
    belfry.nest.kill(lost)
    return tasks


def lose_behind(belfry: Belfry, lost: str) -> Tasks:
    """The others have begun the batch and fired, the lost one has not heard of it."""
    os.kill(belfry.nest.process(lost).pid, signal.SIGSTOP)
    tasks = belfry.begin()
    belfry.wait_fired(others(belfry, lost))
    belfry.nest.kill(lost)
    return tasks


def lose_ahead(belfry: Belfry, lost: str) -> Tasks:
    """The lost one has fired, another has not: it does so with what it takes over, but for what has fired."""
    slow = others(belfry, lost)[0]
    belfry.hold(slow)
    tasks = belfry.begin()
    belfry.wait_held(slow)
    belfry.wait_fired([lost])
    belfry.nest.kill(lost)
    belfry.let_go(slow)
    return tasks


def lose_between(belfry: Belfry, lost: str) -> Tasks:
    """Nobody has begun the batch."""
    belfry.nest.kill(lost)
    return belfry.begin()


LOSSES: list[Callable[[Belfry, str], Tasks]] = [lose_firing, lose_behind, lose_ahead, lose_between]


@pytest.mark.parametrize("lose", LOSSES)
def test_timers_of_a_lost_host_fire_once_and_before_rows(belfry: Belfry, lose: Callable[[Belfry, str], Tasks]) -> None:
    tasks = lose(belfry, "host-2")
    belfry.take_over("host-2")
    outputs = tasks.outputs()
    assert belfry.begin().outputs() == outputs, "a task that is repeated gets the same, in the same order"
    belfry.complete(tasks)
    belfry.run()
    belfry.run()


@pytest.mark.long
def test_an_heir_is_killed_before_it_has_fired_what_it_took_over(belfry: Belfry) -> None:
    """It finds in its log what it has not fired, and with which times the batch was begun."""
    tasks = lose_behind(belfry, "host-2")
    belfry.hold("host-1")
    belfry.take_over("host-2")
    belfry.wait_held("host-1")
    belfry.nest.kill("host-1")
    belfry.nest.start("host-1")
    belfry.complete(tasks)
    belfry.run()


def test_an_heir_is_lost_before_it_has_fired_what_it_took_over(belfry: Belfry) -> None:
    """The first host has not come to its timers: two that are lost in the same call of user code would be the call's fault."""
    tasks = lose_behind(belfry, "host-2")
    belfry.hold("host-1")
    belfry.take_over("host-2")
    belfry.wait_held("host-1")
    belfry.nest.kill("host-1")
    belfry.take_over("host-1")
    belfry.complete(tasks)
    belfry.run()


@pytest.mark.long
def test_the_host_is_started_again_after_heirs_had_prepared_its_timers(belfry: Belfry) -> None:
    """There is no will, so it fires them itself, and the heirs let go of them."""
    tasks = lose_firing(belfry, "host-2")

    def refuse(host: str, request: typed.Request[Reply]) -> Reply:
        answer = belfry.ask(host, request)
        if isinstance(request, messages.ReportTakeover) and host == "host-1":
            raise HostUnavailable("the second heir is lost, too")
        return answer

    estate = belfry.estate("host-2")
    owned = {operator: own.mine() for operator, own in estate.owned.items()}
    with pytest.raises(HostUnavailable):
        hand_to_heirs(estate, divide(owned, others(belfry, "host-2"), {}), refuse)
    belfry.nest.start("host-2")
    belfry.complete(tasks)
    belfry.run()
    assert belfry.mark("host-0")["unfired"] == Units().to_dict()


@pytest.mark.long
def test_copies_take_over_timers_that_were_not_fired(belfry: Belfry) -> None:
    groups = groups_of(belfry.nest, "host-2")
    migrate(belfry.nest, "host-2", "host-1", "standby", [{"groups": groups, "keys": []}])
    wait_until(lambda: "copied" in dict(report(belfry.nest, "host-2").phases), what="copies stand")
    belfry.run()
    tasks = lose_firing(belfry, "host-2")
    told = belfry.take_over("host-2", {OPERATOR: {"host-1": Units(frozenset(groups))}})
    assert told["host-1"].by_copies
    belfry.complete(tasks)
    belfry.run()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_takeovers_and_never_is_nobody_able_to(tmp_path: Path, seed: int) -> None:
    """Most of the losses are aimed at the moment in which hosts fire; every row and every timer counts once all the way."""
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    refused: list[str] = []
    while done.total() < TAKEOVERS:
        belfry = Belfry(tmp_path / f"nest-{done.total()}", HOSTS)
        try:
            belfry.run()
            while len(belfry.nest.routing.hosts) > 1 and done.total() < TAKEOVERS:
                lost = chance.choice(belfry.nest.routing.hosts)
                lose = chance.choice([lose_firing, lose_firing, lose_behind, lose_ahead, lose_between])
                tasks = lose(belfry, lost)
                done[lose.__name__] += 1
                try:
                    belfry.take_over(lost)
                except GodwitError as error:
                    refused.append(str(error))
                    belfry.nest.start(lost)
                belfry.complete(tasks)
            belfry.run()
        finally:
            belfry.nest.close()
    told = f"nobody could take over in {len(refused)} of {done.total()} takeovers: {dict(done)} {Counter(refused)}"
    sys.stdout.write(f"{told}\n")
    assert not refused, told

"""Hosts whose directory is lost come back from their peer, exactly; peers are lost, and origins go on; nobody starts empty."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from godwit.errors import CheckpointCorrupt, StaleGeneration
from godwit.runtime.backup.records import Record, Records, mirror_directory
from godwit.runtime.host.host import Host
from godwit.runtime.liveness.leases import host_directory
from godwit.runtime.messages import GetStatus, Stop
from godwit.runtime.router.routing_table import write_routing
from godwit.state.changelog import Durability
from godwit.state.fencing import claim
from tests.integration.nest import OPERATOR, Nest
from tests.integration.test_migration import Flow, ended, groups_of, migrate
from tests.integration.test_takeover import taken_over
from tests.spark.flocks import wait_until


@pytest.fixture
def nest(tmp_path: Path) -> Iterator[Nest]:
    nest = Nest(tmp_path / "godwit", hosts=2, backup=True)
    yield nest
    nest.close()


def status(nest: Nest, host: str) -> dict[str, Any]:
    return nest.ask(host, GetStatus()).backup


def wait_stands(nest: Nest, *hosts: str) -> None:
    for host in hosts:
        wait_until(
            lambda host=host: (newest(nest, host).state, newest(nest, host).peer) == ("kept", nest.peers[host]),
            what=f"the backup of {host} stands",
        )


def newest(nest: Nest, host: str) -> Record:
    record = Records(str(nest.checkpoint), host).newest()
    assert record is not None
    return record


def lose_directory(nest: Nest, host: str) -> None:
    shutil.rmtree(host_directory(str(nest.checkpoint), host))


def check(nest: Nest, flow: Flow) -> None:
    flow.end()
    assert nest.state(flow.batch - 1) == flow.seen.counts


@pytest.mark.parametrize("durability", ["process", pytest.param("disk", marks=pytest.mark.long)])
def test_a_lost_directory_comes_back_from_the_peer(nest: Nest, durability: Durability) -> None:
    """With what was moved there: state, ledger and ownership."""
    nest.durability = durability
    nest.start_all()
    flow = Flow(nest)
    migrate(nest, "host-1", "host-0", "live", [{"groups": groups_of(nest, "host-1")[::2], "keys": []}])
    assert ended(nest, "host-1").done == 1
    owned = groups_of(nest, "host-0")
    wait_stands(nest, "host-0", "host-1")
    flow.wait_batches(2)
    told = status(nest, "host-0")
    assert (told["peer"], told["state"], list(told["keeps_for"])) == ("host-1", "stands", ["host-1"])
    assert told["bytes_sent"] >= told["log_bytes"] - told["lag_bytes"] > 0
    assert 0 < told["wait_ms"] <= told["wait_ms_p99"]
    nest.kill("host-0")
    lose_directory(nest, "host-0")
    nest.start("host-0")
    flow.wait_batches(3)
    assert groups_of(nest, "host-0") == owned
    wait_stands(nest, "host-0")
    check(nest, flow)


def test_others_take_over_a_host_whose_directory_is_lost(nest: Nest) -> None:
    nest.start_all()
    write_routing(str(nest.checkpoint), OPERATOR, nest.routing)
    flow = Flow(nest)
    wait_stands(nest, "host-0")
    nest.kill("host-0")
    lose_directory(nest, "host-0")
    taken_over(nest, "host-0", ["host-1"], {})
    flow.wait_batches(3)
    check(nest, flow)
    lose_directory(nest, "host-0")
    with pytest.raises(StaleGeneration, match="other hosts own its keys"):
        Host(nest.config("host-0"), lambda: 0).run()


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_an_origin_goes_on_without_its_peer_and_catches_up_with_another(nest: Nest, how: signal.Signals) -> None:
    """A peer that says nothing is lost too, after a while."""
    nest.peers |= {"host-0": "host-2", "host-1": None}
    nest.start("host-0", "host-1", "host-2", "host-3")
    flow = Flow(nest)
    wait_stands(nest, "host-0")
    os.kill(nest.process("host-2").pid, how)
    flow.wait_batches(3)
    assert (newest(nest, "host-0").state, newest(nest, "host-0").peer) == ("none", "host-2")
    nest.peers["host-0"] = "host-3"
    wait_stands(nest, "host-0")
    flow.wait_batches(1)
    nest.kill("host-0")
    lose_directory(nest, "host-0")
    lose_directory(nest, "host-2")
    nest.start("host-0")
    flow.wait_batches(2)
    check(nest, flow)


@pytest.mark.long
def test_a_peer_that_is_back_needs_only_the_rest_and_one_that_is_not_needed_tidies_up(nest: Nest) -> None:
    nest.peers |= {"host-0": "host-2", "host-1": None}
    nest.start("host-0", "host-1", "host-2", "host-3")
    flow = Flow(nest)
    wait_stands(nest, "host-0")
    flow.wait_batches(10)
    flow.end()
    sent = status(nest, "host-0")["bytes_sent"]
    nest.kill("host-2")
    nest.start("host-2")
    wait_until(lambda: status(nest, "host-0")["bytes_sent"] > sent, what="connected again")
    wait_stands(nest, "host-0")
    assert status(nest, "host-0")["bytes_sent"] < 1.5 * sent
    nest.peers["host-0"] = "host-3"
    wait_stands(nest, "host-0")
    wait_until(lambda: not status(nest, "host-2")["keeps_for"], what="host-2 has removed it")
    assert list(status(nest, "host-3")["keeps_for"]) == ["host-0"]


@pytest.mark.long
def test_both_are_killed_and_both_directories_are_there(nest: Nest) -> None:
    nest.start_all()
    flow = Flow(nest)
    wait_stands(nest, "host-0", "host-1")
    nest.kill("host-0")
    nest.kill("host-1")
    nest.start("host-0", "host-1")
    flow.wait_batches(3)
    wait_stands(nest, "host-0", "host-1")
    check(nest, flow)


@pytest.mark.long
def test_a_directory_that_led_to_a_disk_that_is_gone_is_made_anew(nest: Nest, tmp_path: Path) -> None:
    disk = tmp_path / "disk" / "host-0"
    disk.mkdir(parents=True)
    directory = host_directory(str(nest.checkpoint), "host-0")
    directory.parent.mkdir()
    directory.symlink_to(disk)
    nest.start_all()
    flow = Flow(nest)
    wait_stands(nest, "host-0")
    nest.kill("host-0")
    shutil.rmtree(disk.parent)
    nest.start("host-0")
    assert not directory.is_symlink()
    flow.wait_batches(3)
    check(nest, flow)


@pytest.mark.parametrize("backup", [False, True])
def test_a_directory_that_is_lost_without_a_backup_is_an_error(nest: Nest, backup: bool) -> None:
    nest.backup = backup
    nest.peers = dict.fromkeys(nest.peers)
    nest.start("host-0")
    nest.kill("host-0")
    lose_directory(nest, "host-0")
    with pytest.raises(
        CheckpointCorrupt, match=r"the directory of host-0 is gone, and it has had no complete backup.*start_from"
    ):
        Host(nest.config("host-0"), lambda: 0).run()


def test_a_host_that_was_stopped_and_restored_elsewhere_answers_nothing(nest: Nest) -> None:
    nest.start_all()
    flow = Flow(nest)
    wait_stands(nest, "host-0")
    zombie = nest.process("host-0")
    os.kill(zombie.pid, signal.SIGSTOP)
    lose_directory(nest, "host-0")
    nest.start("host-0")
    os.kill(zombie.pid, signal.SIGCONT)
    flow.wait_batches(3)
    check(nest, flow)
    assert zombie.wait(20) != 0, "it has found out by itself"


def test_an_origin_whose_mirror_was_claimed_ends_though_its_own_directory_is_there(nest: Nest) -> None:
    """Somebody who could not see the directory has begun to restore it: from then on the peer acknowledges nothing."""
    nest.start_all()
    flow = Flow(nest)
    wait_stands(nest, "host-0")
    claim(mirror_directory(str(nest.checkpoint), "host-1", "host-0"))
    assert nest.process("host-0").wait(20) != 0, "it has found out by itself"
    assert newest(nest, "host-0").state == "kept", "nothing was answered without its backup"
    nest.start("host-0")
    flow.wait_batches(3)
    wait_stands(nest, "host-0")
    check(nest, flow)


@pytest.mark.long
def test_a_flock_that_is_closed_leaves_backups_that_stand(nest: Nest) -> None:
    nest.start_all()
    flow = Flow(nest)
    wait_stands(nest, "host-0", "host-1")
    flow.end()
    for host in nest.routing.hosts:
        nest.ask(host, Stop())
    assert [nest.process(host).wait(20) for host in nest.routing.hosts] == [0, 0]
    assert [newest(nest, host).state for host in nest.routing.hosts] == ["kept", "kept"]
    lose_directory(nest, "host-0")
    nest.start_all()
    assert nest.state(flow.batch - 1) == flow.seen.counts

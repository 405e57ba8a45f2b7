"""Requests that make no sense are refused before anything is done, with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import godwit
from godwit.errors import DefinitionError, NotEnoughSlots
from tests.spark.flocks import OPERATOR, Count, KeyCount


@pytest.fixture(scope="module")
def flock(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[godwit.Flock]:
    root = tmp_path_factory.mktemp("refused")
    with godwit.Flock(spark, hosts=2, checkpoint=root / "flock") as flock:
        flock.process(KeyCount(10).stream(spark), "key", Count(), name=OPERATOR)
        flock.process(KeyCount(10).batch(spark), "key", Count(), name="batch")
        yield flock


@pytest.mark.parametrize(
    ("call", "arguments", "said"),
    [
        ("scale", {"hosts": 0}, "hosts=0 is not allowed"),
        ("scale", {"hosts": "3"}, "hosts='3' is not allowed"),
        ("scale", {"hosts": True}, "hosts=True is not allowed"),
        ("scale", {"hosts": 3, "protocol": "warp"}, r"protocol='warp' is not known\. Give one of: .*live.*restart"),
        ("scale", {"hosts": 3, "order": "slow"}, r"order='slow' is not known\. Give one of: sudden, fluid, batched"),
        ("scale", {"hosts": 3, "protocol": "restart"}, "restart= was not given to start it again"),
        ("scale", {"hosts": 3, "restart": print}, "restart= has no effect"),
        ("scale", {"hosts": 3, "protocol": "standby"}, "scale chooses the targets itself"),
        ("scale", {"hosts": 3, "step_units": 0}, "step_units=0 is not allowed"),
        ("scale", {"hosts": 3, "order": "fluid", "step_units": 4}, "step_units has no effect with order='fluid'"),
        ("scale", {"hosts": 3, "rate_bytes_per_s": -1}, "rate_bytes_per_s=-1 is not allowed"),
        ("scale", {"hosts": 3, "source": "backup"}, "source='backup' has no effect with protocol='live'"),
        ("scale", {"hosts": 3, "protocol": "push", "check": True}, "check=True has no effect with protocol='push'"),
        ("scale", {"hosts": 3, "on_conflict": "hope"}, "on_conflict='hope' is not known"),
        ("scale", {"hosts": 3, "speed": 9}, "there is no option 'speed'"),
        ("drain", {"host": "host-9"}, "'host-9' is not a host of this flock.*host-0, host-1"),
        ("drain", {"host": 0}, "0 is not a host of this flock"),
        ("drain", {"host": "host-0", "protocol": "standby"}, "512 of 512 units have no copy"),
        ("rebalance", {"operator": "none"}, "no operator of this name"),
        ("rebalance", {"operator": "batch"}, "no operator of this name over a stream"),
        ("move", {"operator": "none", "groups": [1], "to": "host-1"}, "no operator of this name"),
        ("move", {"operator": "batch", "groups": [1], "to": "host-1"}, "no operator of this name over a stream"),
        ("move", {"operator": OPERATOR, "groups": [1], "to": "host-7"}, "to='host-7' is not a host"),
        ("move", {"operator": OPERATOR, "groups": [1], "to": "host-0"}, "host-0 already owns all of these keys"),
        ("move", {"operator": OPERATOR, "groups": [1024], "to": "host-1"}, "group 1024 does not exist.*0 to 1023"),
        ("move", {"operator": OPERATOR, "groups": [], "to": "host-1"}, "is not a list of groups"),
        ("move", {"operator": OPERATOR, "keys": ["C1"], "to": "host-1"}, "'C1' cannot be a value of key column 'key'"),
        ("move", {"operator": OPERATOR, "keys": [1.5], "to": "host-1"}, "1.5 cannot be a value of key column 'key'"),
        ("move", {"operator": OPERATOR, "keys": [None], "to": "host-1"}, "None cannot be a value of key column 'key'"),
        ("move", {"operator": OPERATOR, "keys": [(1, 2)], "to": "host-1"}, "has 2 values"),
        ("move", {"operator": OPERATOR, "keys": 5, "to": "host-1"}, "is not a list of keys"),
        ("move", {"operator": OPERATOR, "to": "host-1"}, "neither keys= nor groups= was given"),
        ("move", {"operator": OPERATOR, "keys": [1], "groups": [1], "to": "host-1"}, "both keys= and groups= were"),
        ("standby", {"operator": OPERATOR, "to": "host-9"}, "to='host-9' is not a host"),
        ("standby", {"operator": OPERATOR, "to": "host-1", "protocol": "live"}, "uses protocol 'standby'"),
        ("routing", {"operator": "none"}, "no operator of this name"),
        ("history", {"operator": "none"}, "no operator of this name"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_to_do(
    flock: godwit.Flock, call: str, arguments: dict[str, Any], said: str
) -> None:
    before = flock.history()
    with pytest.raises(DefinitionError, match=said) as raised:
        getattr(flock, call)(**arguments)
    assert raised.value.todo
    assert flock.history() == before


def test_more_hosts_than_task_slots_are_refused(flock: godwit.Flock) -> None:
    with pytest.raises(NotEnoughSlots, match="9 hosts need 10 task slots"):
        flock.scale(9)
    assert len(flock.status()["hosts"]) == 2


def test_the_last_host_is_not_drained(spark: SparkSession, tmp_path: Path) -> None:
    with godwit.Flock(spark, hosts=1, checkpoint=tmp_path / "flock") as flock:
        with pytest.raises(DefinitionError, match="host-0 is the last host"):
            flock.drain("host-0")

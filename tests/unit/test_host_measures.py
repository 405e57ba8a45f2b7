"""From what hosts say to what is decided from: hot keys of all of them, what comes in, and who says nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from godwit.errors import HostUnavailable
from godwit.runtime.messages import GetStatus
from godwit.spark.hosts.host_measures import HostMeasures


class Flock:
    """Hosts with prepared answers, some of which own something."""

    def __init__(self, answers: dict[str, dict[str, Any] | None], warm: tuple[str, ...] = ()) -> None:
        self._answers, self._warm = answers, warm

    def hosts(self) -> tuple[str, ...]:
        return tuple(self._answers)

    def owned(self, host: str) -> dict[str, str]:
        return {} if host in self._warm else {"count": "something"}

    def names(self) -> list[str]:
        return ["count"]

    def ask_now(self, host: str, request: GetStatus) -> Any:
        answer = self._answers[host]
        if answer is None:
            raise HostUnavailable("away")
        return SimpleNamespace(instances=[answer])


def instance(
    useful: float = 0.5, offered: int = 500, hot: dict[int, int] | None = None, rows: int = 1000
) -> dict[str, Any]:
    window = {"useful": useful, "rows_per_s": 1000 * useful, "true_rows_per_s": 1000.0 if useful else None}
    window |= {"wait_ms": 1.0, "wait_ms_max": 2.0}
    keys = [{"key": [k, "x"], "hash": k, "rows_at_least": n, "rows_at_most": n + 1} for k, n in (hot or {}).items()]
    return {
        "operator": "count",
        "instance": "count",
        "bytes": 100,
        "keys": 10,
        "batches": [[batch, 1000 * batch, offered] for batch in range(5)],
        "gauges": {"short": window, "long": window, "hot": {"rows": rows, "keys": keys}},
    }


def measuring(answers: dict[str, dict[str, Any] | None], warm: tuple[str, ...] = ()) -> HostMeasures:
    flock: Any = Flock(answers, warm)
    parts: Any = SimpleNamespace(hosts=flock, members=flock, tables=flock)
    return HostMeasures(parts)


def test_hosts_are_added_up() -> None:
    sample = measuring({"host-0": instance(0.8), "host-1": instance(0.4)}).sample()
    one = sample.operators["count"]
    assert sample.hosts == ("host-0", "host-1")
    assert (one.useful, one.rows_per_s, one.offered_rows_per_s) == pytest.approx((1.2, 1200.0, 1000.0))


def test_warm_host_takes_no_part() -> None:
    found = measuring({"host-0": instance(), "host-1": instance(0.0)}, warm=("host-1",))
    assert found.sample().hosts == ("host-0",)
    assert list(found.sample().operators["count"].instances) == ["host-0"]
    assert found.roster() == (1, 1)


def test_host_that_is_away_is_named() -> None:
    sample = measuring({"host-0": instance(), "host-1": None}).sample()
    assert sample.silent == ("host-1",)
    assert measuring({"host-0": instance(), "host-1": None}, warm=("host-1",)).sample().silent == ()


def test_who_does_not_work_is_offered_nothing() -> None:
    idle = measuring({"a": instance(), "b": instance(0.0, 700)}).sample()
    assert idle.operators["count"].offered_rows_per_s == 500.0, "its last batches were long ago"
    assert measuring({"a": instance(0.0)}).sample().operators["count"].offered_rows_per_s == 0.0


def test_hot_keys_have_their_share_of_all_rows_and_are_where_they_have_most() -> None:
    answers = {"host-0": instance(hot={1: 300, 2: 50}), "host-1": instance(hot={1: 500})}
    hot = measuring(answers).sample().operators["count"].hot
    assert [(key.key, key.host, key.share) for key in hot] == [("1, x", "host-1", 0.4), ("2, x", "host-0", 0.025)]


def test_people_are_told_the_limiting_key() -> None:
    told = measuring({"host-0": instance(hot={1: 600}), "host-1": instance()}).by_operator()["count"]
    assert told.limiting_key is not None
    assert told.limiting_key.to_dict() == {
        "key": "1, x",
        "host": "host-0",
        "share": 0.3,
        "load": 0.3,
        "rows_per_s_max": 3333,
        "merge": "not declared",
    }
    assert told["hosts"]["host-0"]["hot_keys"][0]["key"] == "1, x"
    assert told["useful"] == 0.5

"""Features that benchmarks switch off in hosts: off while the switch is on, and back afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from benchmarks.inside import switched_off
from godwit.model.routing import Routing
from godwit.runtime.host.host import HostConfig
from godwit.runtime.load.gauges import SHORT_S, Gauges
from godwit.runtime.load.sketch import HotKeys
from godwit.spark.hosts import host_jobs

CONFIG = HostConfig("host-0", "checkpoint", "controller", "token", routing=Routing.spread(["host-0"]))


def seen_useful() -> Any:
    gauges = Gauges(began_s=0.0)
    gauges.begins(1.0)
    gauges.ends(2.0, rows=10)
    gauges.waited(2.0, 0.5)
    window = gauges.window(3.0, SHORT_S)
    return window["useful"], window["wait_ms"]


def test_without_measures_nothing_is_counted_and_afterwards_everything_is() -> None:
    with switched_off.measures_off():
        assert seen_useful() == (0.0, 0.0)
        HotKeys().add(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]  # looks at neither
    assert seen_useful() == (pytest.approx(1 / 3), pytest.approx(500.0))


def test_hosts_serve_without_measures_and_count_again_when_they_have_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(switched_off, "serve", lambda config: served.append((config, seen_useful())))
    switched_off.serve_without_measures(CONFIG)
    assert served == [(CONFIG, (0.0, 0.0))]
    assert seen_useful() != (0.0, 0.0)


def test_hosts_serve_without_ownership(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[HostConfig] = []
    monkeypatch.setattr(switched_off, "serve", served.append)
    switched_off.serve_without_ownership(CONFIG)
    assert [(config.host, config.routing) for config in served] == [("host-0", None)]


@pytest.mark.parametrize(
    ("switch", "body"),
    [
        (switched_off.without_measures, switched_off.serve_without_measures),
        (switched_off.without_ownership, switched_off.serve_without_ownership),
    ],
)
def test_host_tasks_get_the_other_body_while_the_switch_is_on(switch: Any, body: Any) -> None:
    before = vars(host_jobs)["serve"]
    with switch():
        assert vars(host_jobs)["serve"] is body
        assert cloudpickle.loads(cloudpickle.dumps(body)) is body, "a host imports it by name"
    assert vars(host_jobs)["serve"] is before

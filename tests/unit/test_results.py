"""What a flock answers with: fields by attribute and by name, a form for JSON, and a text that can be read."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields

import pytest

import godwit
from godwit.control import migration_report
from godwit.control.migration_report import MoveProgress
from godwit.control.moves import Move
from godwit.model.units import Unit, Units
from godwit.spark.results.measures import HotKeyShare, InstanceMeasures, Measures, MeasuresByOperator
from godwit.spark.results.migration_summary import summary_of
from godwit.spark.results.shown_events import Events
from godwit.spark.results.status import HostStatus, OperatorStatus, Status


def status() -> Status:
    counts = dict.fromkeys(("rows", "outputs", "replayed", "late", "timers_fired", "dead_letters"), 0)
    operator = OperatorStatus(instances={}, keys=2, bytes=1_234, rows_per_second=0.5, batch=3, lag_s=None, **counts)
    return Status(
        flock="f1",
        checkpoint="/data/ck",
        hosts={
            "host-0": HostStatus(state="serving", restarts=0, groups=1024, generation=1, pid=77, uptime_s=12.5),
            "host-1": HostStatus(state="failed", restarts=3, groups=0, error="no disk"),
        },
        operators={"speed": operator},
        quarantined={},
        storage={"durability": "process"},
    )


def test_fields_are_attributes_and_can_be_read_by_name() -> None:
    found = status()
    assert found.hosts["host-0"].pid == found["hosts"]["host-0"]["pid"] == 77
    assert found.hosts["host-1"].get("pid") is None
    assert dict(found.operators["speed"].items())["bytes"] == 1_234
    with pytest.raises(KeyError):
        found["host"]
    with pytest.raises(FrozenInstanceError):
        found.flock = "other"  # type: ignore[misc]


def test_the_form_for_json_has_everything() -> None:
    plain = json.loads(json.dumps(status().to_dict()))
    assert plain["hosts"]["host-1"]["error"] == "no disk"
    assert plain["operators"]["speed"]["keys"] == 2


def test_a_status_is_read_at_a_glance() -> None:
    assert repr(status()).splitlines() == [
        "flock f1 in /data/ck, durability process",
        "host    state    generation  restarts  groups  uptime s  error",
        "host-0  serving  1           0         1,024   12.5",
        "host-1  failed               3         0                 no disk",
        "operator  keys  bytes  rows  rows/s  late  dead letters  batch  lag s",
        "speed     2     1,234  0     0.5     0     0             3",
    ]


def test_measures_are_read_at_a_glance() -> None:
    names = (
        "useful useful_mean load wait_ms state_bytes keys skew hot_share rows_per_s true_rows_per_s offered_rows_per_s"
    )
    recent = {"useful": 0.25, "rows_per_s": 1234.0, "wait_ms": 0.0}
    instance = InstanceMeasures(keys=3, state_bytes=99, last_5_s=recent, last_60_s=recent, hot_keys=())
    found = Measures(
        **dict.fromkeys(names.split(), 0.5),
        hot_keys=(HotKeyShare(key="C1", host="host-0", share=0.4),),
        limiting_key=None,
        hosts={"host-0": instance},
    )
    lines = repr(found).splitlines()
    assert lines[1].split() == ["useful", "0.5"]
    assert lines[-4:] == [
        "host    keys  state bytes  useful  rows/s  wait ms",
        "host-0  3     99           0.25    1,234   0",
        "hot key  host    share",
        "C1       host-0  0.4",
    ]


def test_measures_of_several_operators_and_events_print_as_lines() -> None:
    names = [field.name for field in fields(Measures) if field.name not in ("hot_keys", "limiting_key", "hosts")]
    one = Measures(**dict.fromkeys(names, 0.5), hot_keys=(), limiting_key=None, hosts={})
    lines = repr(MeasuresByOperator(speed=one, count=one)).splitlines()
    assert [line for line in lines if line.startswith("operator")] == ["operator speed", "operator count"]
    assert repr(MeasuresByOperator()) == "no operators yet"
    events = Events(
        [
            {"at": "T1", "event": "defined", "operator": "speed", "hosts": ["host-0"]},
            {"at": "T2", "event": "moved", "migration": "m1", "operator": "speed", "groups": "1-9", "keys": ["k"] * 99},
        ]
    )
    assert repr(events[:1]) != repr(events)
    lines = repr(events).splitlines()
    assert lines[0].split() == ["at", "event", "migration", "operator", "details"]
    assert lines[1].split() == ["T1", "defined", "speed", "hosts=['host-0']"]
    assert lines[2].split()[:5] == ["T2", "moved", "m1", "speed", "groups=1-9,"]
    assert lines[2].endswith("...")
    assert repr(Events()) == "no events yet"


def test_a_summary_is_read_at_a_glance() -> None:
    move = MoveProgress(Move("speed", "host-0", "host-1", Units(frozenset({1, 2}))), phase="moved")
    move.moved = {Unit("group", 1): 2, Unit("group", 2): 2}
    fields = {
        "id": "m1-ab",
        "kind": "move",
        "protocol": "live",
        "order": "batched",
        "outcome": "done",
        "reason": "",
        "started": "2024-05-01T00:00:00Z",
        "ended": None,
        "reconfiguration_s": 0.5,
        "phases": [["queued", 0.0], ["done", 0.5]],
        "groups_minimum": 2,
        **migration_report.totals([move]),
    }
    found = summary_of(fields)
    assert found.phases == (("queued", 0.0), ("done", 0.5))
    assert found.moves[0].units_moved == 2
    assert found.stall.rows_waited == 0
    assert repr(found).splitlines() == [
        "move m1-ab by live, batched: done after 0.5 s",
        "0 keys (0 bytes) in 2 groups and 0 single keys; 0 rows sent twice",
        "rows of moving keys: 0, of which 0 waited; p50 0 ms, p99 0 ms, max 0 ms",
        "operator  from    to      moved  of  phase  reason",
        "speed     host-0  host-1  2      2   moved",
    ]
    assert json.dumps(found.to_dict())


def test_results_are_exported() -> None:
    assert godwit.Status is Status
    assert godwit.Measures is Measures

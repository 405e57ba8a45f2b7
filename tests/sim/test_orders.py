"""Pushing by rows waiting per byte makes rows wait least, on the same keys and rows as every other order."""

from __future__ import annotations

import pytest

from tests.sim.orders import ORDERS, SKEWS, compare, load, main, push


@pytest.mark.parametrize("skew", SKEWS.values(), ids=SKEWS)
def test_by_backlog_has_the_least_waiting(skew: float) -> None:
    found = compare(skew)
    best = found.pop("by-backlog")
    assert best.mean_ms < min(waiting.mean_ms for waiting in found.values())
    assert best.total_s < min(waiting.total_s for waiting in found.values())


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_sends_every_key_once(order: str) -> None:
    sent: list[int] = []

    def choose(steps, now_s, load):  # type: ignore[no-untyped-def]
        step = ORDERS[order](steps, now_s, load)
        sent.append(step.number)
        return step

    keys = load(3, 1.0)
    push(keys, choose)
    assert sorted(sent) == list(range(len(keys.sizes)))


def test_table_has_a_line_for_every_order_and_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(ORDERS) * len(SKEWS)

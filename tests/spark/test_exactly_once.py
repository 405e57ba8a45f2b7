"""Exactly once and in order on real Spark, without kills: restarts, repeated evaluation, chains, refusals."""

from __future__ import annotations

from tests.spark.flocks import KeyCount


def test_x():
    print(KeyCount(100).truth())

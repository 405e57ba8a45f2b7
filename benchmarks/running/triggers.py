"""Spark's two triggers, by the names that settings and results have for them."""

from __future__ import annotations

from typing import Final, Literal, get_args

MICRO_BATCH: Final = "micro-batch"
REAL_TIME: Final = "real-time"
Trigger = Literal["micro-batch", "real-time"]
TRIGGERS: Final = get_args(Trigger)

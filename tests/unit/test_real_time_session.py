"""Which settings a session must have been started with for the real-time trigger."""

from __future__ import annotations

import pytest

from godwit.spark.realtime.started_session import BUFFER, PIPELINED, missing
from godwit.spark.realtime.tuning import tuning


def test_a_tuned_session_lacks_nothing() -> None:
    assert missing({each.name: each.value for each in tuning(real_time=True)}) == []


def test_a_smaller_buffer_is_fine() -> None:
    assert missing({PIPELINED: "True", BUFFER: "64"}) == []


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({PIPELINED: "true"}, f"{BUFFER} must be at most 256, and is not set"),
        ({PIPELINED: "true", BUFFER: "65536"}, f"{BUFFER} must be at most 256, and is 65536"),
        ({PIPELINED: "true", BUFFER: "64k"}, f"{BUFFER} must be at most 256, and is 64k"),
        ({BUFFER: "256"}, f"{PIPELINED} must be true, and is not set"),
        ({PIPELINED: "false", BUFFER: "256"}, f"{PIPELINED} must be true, and is false"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, str], complaint: str) -> None:
    assert missing(settings) == [complaint]

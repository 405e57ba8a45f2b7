"""Other systems under the same load, measured with the same figures: what users have today for changing parallelism."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.peer_settings import PeerSettings
from benchmarks.running.watch import Watch

__all__ = ["PeerSettings", "measure"]


def measure(settings: PeerSettings, watch: Watch) -> dict[str, Any]:
    """One run of the system that the settings name."""
    from benchmarks.peers.flink import measure as flink
    from benchmarks.peers.prepare import version
    from benchmarks.peers.spark_state import measure as spark

    figures = flink(settings, watch) if settings.checked().system == "flink" else spark(settings, watch)
    return figures | {"system_version": version(settings.system)}

"""Hosts without a feature that every flock has, to measure what the feature costs.

Each switch replaces the body of the host tasks that start while the switch is on. The replacement runs in the host's own
process: it leaves the feature out, serves as the original does, and puts everything back when the host stops, because Spark
uses the process again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from benchmarks.experiments.stopwatch import replaced
from godwit.runtime.host.host import HostConfig
from godwit.runtime.load.gauges import Gauges
from godwit.runtime.load.sketch import HotKeys
from godwit.spark.hosts import host_jobs
from godwit.spark.hosts.host_task import serve


def without_ownership() -> AbstractContextManager[None]:
    """Hosts started meanwhile do not check who owns a key, so no key of theirs can move."""
    return _hosts_run(serve_without_ownership)


def without_measures() -> AbstractContextManager[None]:
    """Hosts started meanwhile count neither their work nor their hot keys."""
    return _hosts_run(serve_without_measures)


def _hosts_run(body: Callable[[HostConfig], None]) -> AbstractContextManager[None]:
    return replaced(host_jobs, "serve", body)


def serve_without_ownership(config: HostConfig) -> None:
    serve(replace(config, routing=None))


def serve_without_measures(config: HostConfig) -> None:
    with measures_off():
        serve(config)


@contextmanager
def measures_off() -> Iterator[None]:
    """In this process."""
    with (
        replaced(Gauges, "begins", _ignore),
        replaced(Gauges, "ends", _ignore),
        replaced(Gauges, "waited", _ignore),
        replaced(HotKeys, "add", _ignore),
    ):
        yield


def _ignore(*_: Any, **__: Any) -> None:
    """Count nothing."""

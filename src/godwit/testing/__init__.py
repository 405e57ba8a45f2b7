"""Shipped for tests: a processor with no Spark and no hosts (`Tester`), and a query under load (`open_loop`, `latency`)."""

from godwit.testing.tester import Tester

__all__ = ["Tester"]

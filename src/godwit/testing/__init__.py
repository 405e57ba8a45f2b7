"""Shipped for tests: run a processor with no Spark and no hosts."""

from godwit.testing.tester import Tester

__all__ = ["Tester"]

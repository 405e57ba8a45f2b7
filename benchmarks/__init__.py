"""Benchmarks, on the public API only; results by commit and machine under `results/`."""

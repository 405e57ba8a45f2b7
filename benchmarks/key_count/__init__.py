"""The figures of docs/benchmarks.md that stand beside Spark's own state, another commit, or a killed host."""

"""The figures of docs/benchmarks.md: key-count beside Spark's own state and beside another commit, and a killed host."""

"""Benchmarks of Godwit: `python -m benchmarks --help`, from the root of the repository.

- `command` turns flags into settings.
- `experiments`, `elasticity` and `key_count` have one module for each measurement; `campaign` runs the papers' experiments.
- `running` has what a run needs (Spark session, settings, results); `workloads` has what queries compute and how it is checked.
- `peers` measures Apache Flink and Spark's own state under the same load.
- `plots` makes figures and pictures of results, `report` makes pages of them; raw results are in `results/`.
- `inside` is the only place that looks inside Godwit; all others use its public API.
"""

"""Benchmarks of Godwit: `python -m benchmarks --help`, from the root of the repository.

`command` turns flags into settings; `experiments` has one module for each measurement; `running` has what a run needs (Spark
session, load, results); `workloads` has what the queries compute and how it is checked; `peers` measures Apache Flink and
Spark's own state; `campaign` runs the papers' experiments one after another; `report` writes the figures. Raw results are in
`results/`. All of it uses the public API of Godwit, except `inside`.
"""

"""Measurements of migrations, failures, throughput and cost at rest, one module each."""

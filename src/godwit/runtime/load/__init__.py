"""What an instance has done lately, in numbers: counters for `status()`, gauges by second, and the keys with most rows."""

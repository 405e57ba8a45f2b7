"""What a reconfiguration costs while a query runs, measured: open-loop load, latencies, exactness (DESIGN 7)."""

"""A job goes from plain Spark to a flock: its state, its offsets and its watermark, read from Spark's checkpoint."""

"""A job goes from plain Spark to a flock, or back: its state, its timers, its offsets and its watermark."""

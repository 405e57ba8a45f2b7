"""Where a change of an instance becomes durable: one frame of the changelog, installed in memory, read again at a restart."""

"""Where a change of an instance becomes durable: one frame of the changelog, merged into memory, read again at a restart."""

"""A copy of a host's changelog on another host: sent, acknowledged, kept, and restored when a disk is lost."""

"""Committed state for people: from the hosts of an open flock, or from the changelogs of a checkpoint."""

"""Keyed state and its changelog: variables, codecs, keys, the ledger of a batch; frames, segments, snapshots and recovery."""

"""Decisions, apart from what carries them out: who should own what, in which order, and what may go on at the same time."""

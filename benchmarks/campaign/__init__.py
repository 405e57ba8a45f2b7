"""The papers' experiments: which runs they have, in which order, and what the figures should come to."""

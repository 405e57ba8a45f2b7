"""Chunks of rows: as columns, as bytes between processes, and divided by the owners of their keys."""

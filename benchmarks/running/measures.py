"""Whether every row came once and in order, and rows a second over batches and runs.

Pure: arrays in, figures out. This module must not know where the rows come from, and decides nothing about what is good enough.
Figures of latency are in `godwit.testing.latency`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from godwit.testing.latency import Numbers

# -- exactness -------------------------------------------------------------------------------------------------------


def counted(keys: Numbers, counts: Numbers, rows_by_key: Numbers) -> dict[str, int]:
    """Every key k must have given 1, 2, ... rows_by_key[k], each once, ascending; in the order in which rows came out.

    A count that no row can have given is a row in excess, as a repeated one is: both are `duplicated`.
    """
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    same = keys[1:] == keys[:-1]
    real = (keys >= 0) & (keys < len(rows_by_key)) & (counts >= 1)
    real[real] = counts[real] <= rows_by_key[keys[real]]
    span = int(rows_by_key.max(initial=0)) + 1
    distinct = len(np.unique(keys[real] * span + counts[real]))
    return {
        "lost": int(rows_by_key.sum()) - distinct,
        "duplicated": len(keys) - distinct,
        "out_of_order": int((same & (counts[1:] < counts[:-1])).sum()),
    }


def wrong_keys(stored: Sequence[tuple[int, Any]], expected: Mapping[int, Any]) -> int:
    """Keys whose state differs, is missing, is there though it should not be, or is there more than once."""
    seen: dict[int, Any] = {}
    wrong: set[int] = set()
    for key, state in stored:
        if key in seen or expected.get(key) != state:
            wrong.add(key)
        seen[key] = state
    return len(wrong | (expected.keys() - seen.keys()))


# -- throughput ------------------------------------------------------------------------------------------------------


def rate_of(batches: Sequence[tuple[int, float]], warm_up: int) -> float:
    """Rows a second from the end of the warm-up's last batch to the end of the last; a batch is rows and when it ended."""
    return sum(rows for rows, _ in batches[warm_up:]) / (batches[-1][1] - batches[warm_up - 1][1])


def quartile_rate(batches: Sequence[tuple[int, float]], warm_up: int) -> float:
    """Rows a second of the batch that a quarter of all, after the warm-up, are quicker than."""
    ends = np.array([end for _, end in batches[warm_up - 1 :]])
    rows = np.array([rows for rows, _ in batches[warm_up:]])
    return float(np.percentile(rows / np.diff(ends), 75))


# -- over several runs -----------------------------------------------------------------------------------------------


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Median, least and greatest of a figure over runs; runs without it are left out."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": float(np.median(known)), "min": min(known), "max": max(known), "runs": len(known)}

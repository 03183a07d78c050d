"""Splitting grouped edges among threads."""

from __future__ import annotations

from typing import no_type_check

import numba


@numba.njit
@no_type_check
def first_group(starts, part, parts):
    """The first group of a part, where each part has about as many edges; all groups at `parts`."""
    low = 0
    high = len(starts) - 1
    if part == 0:
        return low
    if part == parts:
        return high
    edge = starts[high] * part // parts
    while low < high:  # the first group that does not start before this edge
        middle = (low + high) // 2
        if starts[middle] < edge:
            low = middle + 1
        else:
            high = middle
    return low

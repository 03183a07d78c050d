"""Grouping edges by target, one pass each."""

from __future__ import annotations

from typing import no_type_check

from numpy import int32

from outsize.kernels.compiled import kernel


@kernel("void(int64[::1], int64[::1], int64[::1], int32[::1])")
@no_type_check
def place_edges(edge_sources, edge_targets, places, sources):
    """Write each source to the next free place of its target."""
    for edge in range(len(edge_sources)):
        target = edge_targets[edge]
        sources[places[target]] = int32(edge_sources[edge])
        places[target] += 1


@kernel("void(int64, int64, int64[::1], int32[::1])")
@no_type_check
def sort_groups(part, parts, starts, sources):
    """Sort the sources of each target; a part has the targets whose edges start in its share."""
    num_targets, num_edges = len(starts) - 1, len(sources)
    first, last = num_edges * part // parts, num_edges * (part + 1) // parts
    low, high = 0, num_targets
    while low < high:  # the first target whose edges start in this part
        middle = (low + high) // 2
        if starts[middle] < first:
            low = middle + 1
        else:
            high = middle
    for target in range(low, num_targets):
        begin, end = starts[target], starts[target + 1]
        if begin >= last:
            break
        if end - begin > 32:
            sources[begin:end].sort()
            continue
        for i in range(begin + 1, end):
            value = sources[i]
            j = i - 1
            while j >= begin and sources[j] > value:
                sources[j + 1] = sources[j]
                j -= 1
            sources[j + 1] = value


@kernel("int64(int64[::1], int32[::1])")
@no_type_check
def merge_groups(starts, sources):
    """Keep one of equal sources of each target, moved to the front; returns the edges left."""
    num_edges = 0
    begin = starts[0]
    for target in range(len(starts) - 1):
        end = starts[target + 1]
        starts[target] = num_edges
        last = int32(0)
        for i in range(begin, end):
            value = sources[i]
            if i == begin or value != last:
                sources[num_edges] = value  # num_edges <= i: what is overwritten has been read
                num_edges += 1
            last = value
        begin = end
    starts[len(starts) - 1] = num_edges
    return num_edges

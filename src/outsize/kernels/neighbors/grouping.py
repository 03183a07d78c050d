"""Grouping edges by their target: count, place, then sort and merge the edges of each target.

Edges come in chunks, and arrays may be memory-mapped. The numpy code is the reference; compiled
kernels, for int32 sources, give the same arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.threads import num_parts, run_parts

_LEAST_EDGES = 1 << 20
_LEAST_EDGES_PER_PART = 1 << 16
_EDGES_PER_BLOCK = 1 << 22


def place_edges(
    edge_sources: NDArray[np.int64],
    edge_targets: NDArray[np.int64],
    places: NDArray[np.int64],
    sources: NDArray[Any],
) -> None:
    """Write the sources of edges to the places of their targets, in the order of the edges.

    Args:
        edge_sources: `(n,)` sources.
        edge_targets: `(n,)` targets.
        places: The next free place of each target; advanced by this call.
        sources: Where the sources are written.
    """
    kernels = _kernels(sources)
    if kernels is not None:
        kernels.place_edges(edge_sources, edge_targets, places, sources)
        return
    order = np.argsort(edge_targets, kind="stable")
    targets = edge_targets[order]
    found, first, counts = np.unique(targets, return_index=True, return_counts=True)
    within = np.arange(len(targets)) - np.repeat(first, counts)
    sources[places[targets] + within] = edge_sources[order]
    places[found] += counts


def sort_groups(starts: NDArray[np.int64], sources: NDArray[Any], *, merge: bool) -> int:
    """Sort the sources of each target in place; with `merge`, keep one of equal ones.

    Merged edges are moved to the front of `sources`, and `starts` is changed to fit.

    Args:
        starts: Start of each target's edges in `sources`, and the end of the last.
        sources: The source of each edge.
        merge: Whether to drop duplicates.

    Returns:
        The number of edges that are left.
    """
    kernels = _kernels(sources)
    if kernels is not None:
        parts = num_parts(len(sources), _LEAST_EDGES_PER_PART)
        run_parts(kernels.sort_groups, parts, starts, sources)
        return int(kernels.merge_groups(starts, sources)) if merge else len(sources)
    num_targets, num_edges = len(starts) - 1, 0
    begin, edge = 0, 0
    while begin < num_targets:  # blocks of whole targets
        limit = edge + _EDGES_PER_BLOCK
        stop = max(begin + 1, int(np.searchsorted(starts, limit, side="right")) - 1)
        degrees = np.diff(starts[begin : stop + 1])
        end = int(starts[stop])
        targets = np.repeat(np.arange(begin, stop), degrees)
        block = sources[edge:end]
        order = np.lexsort((block, targets))
        block, targets = block[order], targets[order]
        if merge and len(block):
            is_new = np.append(True, (block[1:] != block[:-1]) | (targets[1:] != targets[:-1]))
            block, targets = block[is_new], targets[is_new]
            degrees = np.bincount(targets - begin, minlength=stop - begin)
        sources[num_edges : num_edges + len(block)] = block
        starts[begin:stop] = num_edges + degrees.cumsum() - degrees
        num_edges += len(block)
        begin, edge = stop, end
    starts[num_targets] = num_edges
    return num_edges


def _kernels(sources: NDArray[Any]) -> Any:
    if sources.dtype != np.int32 or not is_worthwhile(len(sources), _LEAST_EDGES):
        return None
    return compiled("neighbors.grouping_numba")

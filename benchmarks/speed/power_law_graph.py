"""Random graphs with power-law degrees, of any size, for benchmarks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

EDGES_PER_NODE = 20
_EXPONENT = 0.6  # degrees fall as 1 / rank^0.6, so that the largest is about 10⁵ of 10⁸ edges
_SCATTER = 48_271  # popular nodes are not neighbours in memory
_CHUNK_EDGES = 10_000_000


def power_law_starts(num_edges: int) -> NDArray[np.int64]:
    """Start of each target's edges, and the end of the last; `EDGES_PER_NODE` on average."""
    num_nodes = max(num_edges // EDGES_PER_NODE, 1)
    weights = np.arange(1, num_nodes + 1, dtype=np.float64) ** -_EXPONENT
    ends = np.rint(weights.cumsum() * (num_edges / weights.sum())).astype(np.int64)
    degrees = np.diff(ends, prepend=0)
    scattered = np.empty_like(degrees)
    scattered[np.arange(num_nodes) * _SCATTER % num_nodes] = degrees
    return np.concatenate((np.zeros(1, np.int64), scattered.cumsum()))


def power_law_sources(starts: NDArray[np.int64], seed: int = 0) -> Iterator[NDArray[np.int32]]:
    """The sources of all edges in chunks, ascending for each target, popular ones more often.

    Args:
        starts: Of the graph, as `power_law_starts` makes them.
        seed: Seed of the draws.
    """
    num_nodes = len(starts) - 1
    first = 0
    while first < num_nodes:
        stop = int(np.searchsorted(starts, starts[first] + _CHUNK_EDGES, "right")) - 1
        stop = min(max(stop, first + 1), num_nodes)
        draw = np.random.default_rng((seed, first))
        ranks = draw.random(starts[stop] - starts[first]) ** (1 / (1 - _EXPONENT)) * num_nodes
        targets = np.repeat(np.arange(stop - first), np.diff(starts[first : stop + 1]))
        keys = targets * num_nodes + ranks.astype(np.int64) * _SCATTER % num_nodes
        keys.sort()
        keys -= targets * num_nodes
        yield keys.astype(np.int32)
        first = stop


def power_law_graph(num_edges: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Starts and sources of a graph in memory."""
    starts = power_law_starts(num_edges)
    return starts, np.concatenate(list(power_law_sources(starts, seed)))

"""Drawing some of each node's neighbours, uniformly and without replacement.

Of d edges, f < d are drawn by Floyd's method: for j = d − f, …, d − 1 take a place t that is
uniform in 0 … j, or j itself if t was taken before. The random numbers are functions of (seed,
node, j), so a draw does not depend on the order of nodes, on threads, or on the rank that asks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.hashing import derive_seed, mix_bits, uniform_at

ALL = -1


def draw_neighbors(
    starts: NDArray[np.int64],
    sources: NDArray[Any],
    nodes: NDArray[np.int64],
    fan_out: int,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw neighbours of nodes.

    Args:
        starts: Start of each target's edges in `sources`, and the end of the last.
        sources: The source of each edge.
        nodes: The targets whose neighbours are drawn, `(n,)`.
        fan_out: How many to draw of each; all if it has no more, or if this is `ALL`.
        seed: Seed of the draws.

    Returns:
        `(n + 1,)` starts, and the drawn sources in the order of their edges.
    """
    degrees = starts[nodes + 1] - starts[nodes]
    counts = degrees if fan_out == ALL else np.minimum(degrees, fan_out)
    drawn_starts = np.concatenate((np.zeros(1, np.int64), counts.cumsum()))
    places = np.arange(drawn_starts[-1]) - np.repeat(drawn_starts[:-1], counts)
    if fan_out != ALL and (large := np.flatnonzero(degrees > fan_out)).size:
        drawn = _draw_places(degrees[large], nodes[large], fan_out, seed)
        places[(drawn_starts[large, None] + np.arange(fan_out)).reshape(-1)] = drawn.reshape(-1)
    edges = np.repeat(starts[nodes], counts) + places
    return drawn_starts, sources[edges].astype(np.int64)


def _draw_places(
    degrees: NDArray[np.int64], nodes: NDArray[np.int64], fan_out: int, seed: int
) -> NDArray[np.int64]:
    """`(n, fan_out)` different places below each degree, ascending."""
    key = mix_bits(torch.from_numpy(nodes) ^ derive_seed(seed, "neighbors"))
    taken = np.full((len(nodes), fan_out), -1, np.int64)
    for number in range(fan_out):
        last = degrees - fan_out + number
        uniform = uniform_at(key + number, torch.float64).numpy()
        place = np.minimum((uniform * (last + 1)).astype(np.int64), last)
        is_taken = (taken[:, :number] == place[:, None]).any(axis=1)
        taken[:, number] = np.where(is_taken, last, place)
    taken.sort(axis=1)
    return taken

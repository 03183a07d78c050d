"""Drawing some of each node's neighbours, uniformly and without replacement.

Of d edges, f < d are drawn by Floyd's method: for j = d − f, …, d − 1 take a place t that is
uniform in 0 … j, or j itself if t was taken before. The random numbers are functions of (seed,
node, j), so a draw does not depend on the order of nodes, on threads, or on the rank that asks.

Time and memory are proportional to what is drawn. Arrays may be memory-mapped: of the sources only
those that are drawn are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.errors import DataError
from outsize.hashing import derive_seed, mix_bits, uniform_at
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.threads import num_parts, run_parts

ALL = -1
_LEAST_EDGES = 4096  # of a graph
_LEAST_DRAWN = 8192  # per thread


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
    fan_out = min(fan_out, len(sources))
    kernels = draw_kernels(len(sources))
    draw = None if kernels is None else _kernel_for(kernels, sources)
    if kernels is None or draw is None:
        return draw_by_numpy(starts, sources, nodes, fan_out, seed)
    given, asked = _read_only(starts), _read_only(nodes)
    drawn_starts = np.empty(len(nodes) + 1, np.int64)
    wrong = kernels.count_drawn(given, len(sources), asked, fan_out, drawn_starts)
    if wrong >= 0:
        raise _out_of_range(starts, int(nodes[wrong]))
    drawn = np.empty(drawn_starts[-1], np.int64)
    key = derive_seed(seed, "neighbors")
    parts = num_parts(len(drawn), _LEAST_DRAWN)
    run_parts(
        draw, parts, given, _read_only(sources, sources.dtype), asked, fan_out, key,
        drawn_starts, drawn,
    )  # fmt: skip
    return drawn_starts, drawn


def draw_by_numpy(
    starts: NDArray[np.int64],
    sources: NDArray[Any],
    nodes: NDArray[np.int64],
    fan_out: int,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`draw_neighbors` without compiled kernels: the reference."""
    if len(nodes) and not 0 <= nodes.min() <= nodes.max() < len(starts) - 1:
        raise _out_of_range(starts, int(nodes[(nodes < 0) | (nodes >= len(starts) - 1)][0]))
    degrees = starts[nodes + 1] - starts[nodes]
    counts = degrees if fan_out == ALL else np.minimum(degrees, fan_out)
    drawn_starts = np.concatenate((np.zeros(1, np.int64), counts.cumsum()))
    places = np.arange(drawn_starts[-1]) - np.repeat(drawn_starts[:-1], counts)
    if fan_out != ALL and (large := np.flatnonzero(degrees > fan_out)).size:
        drawn = _draw_places(degrees[large], nodes[large], fan_out, seed)
        places[(drawn_starts[large, None] + np.arange(fan_out)).reshape(-1)] = drawn.reshape(-1)
    edges = np.repeat(starts[nodes], counts) + places
    return drawn_starts, sources[edges].astype(np.int64)


def draw_kernels(num_edges: int) -> Any:
    """The kernels that draw from a graph of so many edges; `None` if numpy does."""
    if not is_worthwhile(num_edges, _LEAST_EDGES):
        return None
    return compiled("neighbors.draws_numba")


def _kernel_for(kernels: Any, sources: NDArray[Any]) -> Any:
    """The kernel for sources of this type and layout; `None` if there is none."""
    if not (sources.flags.c_contiguous and sources.flags.aligned):
        return None
    return {np.dtype(np.int32): kernels.draw_int32, np.dtype(np.int64): kernels.draw_int64}.get(
        sources.dtype
    )


def _read_only(values: NDArray[Any], dtype: Any = np.int64) -> NDArray[Any]:
    """A view that kernels take, of arrays in memory and of memory-mapped files alike."""
    view = np.ascontiguousarray(values, dtype).view(np.ndarray)[:]
    view.flags.writeable = False
    return view


def _out_of_range(starts: NDArray[np.int64], node: int) -> DataError:
    if 0 <= node < len(starts) - 1:
        return DataError(f"the edges of node {node} are out of range; build the graph again")
    return DataError(f"node {node} is not in the graph, whose targets are 0 … {len(starts) - 2}")


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

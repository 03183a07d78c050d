"""From chunks of edges to edges that are grouped by target.

Edges are read twice: to count those of each target, and to place them. The largest array, one
source per edge, may be a memory-mapped file, so that anonymous memory holds two numbers per target
and a chunk of edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError
from outsize.interrupts import check_stop
from outsize.kernels.neighbors.grouping import place_edges, sort_groups

Pairs = tuple[NDArray[Any], NDArray[Any]]  # sources and targets
NewArray = Callable[[int, Any], NDArray[Any]]
Duplicates = Literal["merge", "keep"]
SelfLoops = Literal["drop", "keep"]


@dataclass(frozen=True)
class EdgeRules:
    """Which edges a relation has.

    Attributes:
        undirected: Whether each edge also counts in the other direction; for relations between
            nodes of one type.
        duplicates: "merge" keeps one of several edges with the same source and target; "keep" all.
        self_loops: "drop" leaves out edges from a node to itself; "keep" keeps them.
    """

    undirected: bool = True
    duplicates: Duplicates = "merge"
    self_loops: SelfLoops = "drop"


@dataclass(frozen=True)
class GroupedEdges:
    """Edges grouped by target, as in `Relation`.

    Attributes:
        starts: Start of each target's edges, and the end of the last; int64.
        sources: The source of each edge, ascending for each target.
    """

    starts: NDArray[np.int64]
    sources: NDArray[Any]


def group_edges(
    chunks: Callable[[], Iterable[Pairs]],
    num_sources: int,
    num_targets: int,
    rules: EdgeRules,
    *,
    same_type: bool = True,
    new_array: NewArray = np.empty,
) -> GroupedEdges:
    """Group edges by target.

    Args:
        chunks: Returns the edges in chunks of sources and targets; called twice.
        num_sources: Number of nodes that sources are of.
        num_targets: Number of nodes that targets are of.
        rules: Which edges to keep.
        same_type: Whether sources and targets are nodes of one type. Otherwise there are no self
            loops, and edges have one direction.
        new_array: Makes the array of sources from its length and type, such as a memory-mapped
            file. If edges are merged, the result is a prefix of it.
    """
    if num_sources > 1 << 62 or num_targets > 1 << 62:
        raise DataError(f"a graph of {max(num_sources, num_targets):,} nodes is too large")

    def directed() -> Iterable[Pairs]:
        for sources, targets in chunks():
            check_stop()
            _require_known(sources, num_sources, "source")
            _require_known(targets, num_targets, "target")
            sources, targets = sources.astype(np.int64), targets.astype(np.int64)
            if same_type and rules.self_loops == "drop" and (loops := sources == targets).any():
                sources, targets = sources[~loops], targets[~loops]
            yield sources, targets
            if same_type and rules.undirected:
                if rules.self_loops == "keep" and (loops := sources == targets).any():
                    sources, targets = sources[~loops], targets[~loops]  # has one direction only
                yield targets, sources

    starts = np.zeros(num_targets + 1, np.int64)
    for _, targets in directed():
        _count(targets, starts[1:])
    np.cumsum(starts, out=starts)
    id_type = np.int32 if num_sources <= np.iinfo(np.int32).max else np.int64
    # numba takes plain arrays only
    sources = np.asarray(new_array(int(starts[-1]), id_type))
    places = starts[:-1].copy()
    for edge_sources, edge_targets in directed():
        place_edges(
            np.ascontiguousarray(edge_sources), np.ascontiguousarray(edge_targets), places, sources
        )
    if not np.array_equal(places, starts[1:]):
        raise DataError("the edges changed while they were read: wait until they are complete")
    num_edges = sort_groups(starts, sources, merge=rules.duplicates == "merge")
    return GroupedEdges(starts, sources[:num_edges])


def target_blocks(starts: NDArray[np.int64], num_edges: int) -> Iterator[tuple[int, int]]:
    """Ranges of targets with at most so many edges each, or one target with more."""
    begin = 0
    while begin < len(starts) - 1:
        limit = int(starts[begin]) + num_edges
        stop = max(begin + 1, int(np.searchsorted(starts, limit, side="right")) - 1)
        yield begin, stop
        begin = stop


def _count(targets: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    if len(targets) * 8 > len(counts):
        counts += np.bincount(targets, minlength=len(counts))
    else:
        np.add.at(counts, targets, 1)


def _require_known(ids: NDArray[Any], num_nodes: int, role: str) -> None:
    if not len(ids):
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= num_nodes:
        wrong = low if low < 0 else high
        nodes = f"0 to {num_nodes - 1:,}" if num_nodes else "none"
        raise DataError(f"an edge has the {role} {wrong:,}, but there are only the nodes {nodes}")

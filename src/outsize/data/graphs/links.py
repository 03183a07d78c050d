"""Holding out edges for link prediction.

An edge's split is a hash of its two nodes. So all copies of an edge are in one split, and both
directions of an undirected one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.data.click_data import Split
from outsize.data.encoding.splits.base import TRAIN, cut, require_shares
from outsize.data.graphs.csr import GroupedEdges, NewArray, Pairs, target_blocks
from outsize.errors import DataError
from outsize.hashing import derive_seed, mix_bits, uniform_at

_EDGES_PER_BLOCK = 1 << 20
_HELD_OUT: dict[Split, int] = {"validation": 1, "test": 2}


@dataclass(frozen=True)
class LinkSplit:
    """Hold out edges of one relation.

    Held-out edges are not in the graph, in neither direction. Self loops are never held out.

    Attributes:
        relation: The relation; it can be left out if there is only one.
        validation: Share of its edges in the validation set.
        test: Share of its edges in the test set.
        seed: Seed of the hash.
    """

    relation: str = ""
    validation: float = 0.05
    test: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        require_shares(self.validation, self.test)

    def assign(self, sources: NDArray[Any], targets: NDArray[Any], *, undirected: bool) -> Any:
        """0 (train), 1 (validation) or 2 (test) for each edge."""
        drawn = uniform_at(self._keys(sources, targets, undirected), torch.float64).numpy()
        splits = cut(drawn, (1 - self.validation - self.test, 1 - self.test))
        return np.where(sources == targets, TRAIN, splits) if undirected else splits

    def is_turned(self, sources: NDArray[Any], targets: NDArray[Any]) -> Any:
        """Which undirected edges are predicted from the larger of their ids; half of them."""
        keys = self._keys(sources, targets, True)
        return (mix_bits(keys + derive_seed(self.seed, "turn")) & 1).bool().numpy()

    def _keys(self, sources: NDArray[Any], targets: NDArray[Any], undirected: bool) -> Any:
        first, second = sources, targets
        if undirected:
            first, second = np.minimum(sources, targets), np.maximum(sources, targets)
        keys = torch.from_numpy(first.astype(np.int64)) + derive_seed(self.seed, "links")
        return mix_bits(keys) + torch.from_numpy(second.astype(np.int64))


class HeldOutLinks:
    """Edges without those that are held out, and those that are.

    Args:
        chunks: Returns all edges in chunks.
        split: Which ones are held out.
        undirected: Whether an edge is the same in both directions.
    """

    def __init__(
        self, chunks: Callable[[], Iterable[Pairs]], split: LinkSplit, *, undirected: bool
    ) -> None:
        self._chunks = chunks
        self._split = split
        self._undirected = undirected

    def training_chunks(self) -> Iterator[Pairs]:
        """The edges that stay in the graph."""
        for sources, targets in self._chunks():
            stays = self._assign(sources, targets) == TRAIN
            yield sources[stays], targets[stays]

    def links(self) -> dict[Split, NDArray[np.int64]]:
        """Held-out split → `(2, n)` distinct edges; undirected ones have one random direction."""
        found: dict[Split, list[NDArray[np.int64]]] = {split: [] for split in _HELD_OUT}
        for sources, targets in self._chunks():
            assigned = self._assign(sources, targets)
            pairs = np.stack((sources, targets)).astype(np.int64)
            for split, number in _HELD_OUT.items():
                found[split].append(pairs[:, assigned == number])
        held_out = {}
        for split, parts in found.items():
            pairs = np.concatenate([np.zeros((2, 0), np.int64), *parts], axis=1)
            if self._undirected:
                pairs = np.sort(pairs, axis=0)
            pairs = _distinct(pairs)
            if not pairs.size:
                raise DataError(
                    f"no edge is in the {split} split of links: raise links.{split} = "
                    f"{getattr(self._split, split)}, or hold out edges of a larger relation"
                )
            held_out[split] = self._turn(pairs)
        return held_out

    def training_links(
        self, edges: GroupedEdges, new_array: NewArray = np.empty
    ) -> NDArray[np.int64]:
        """`(2, n)` distinct edges of the graph; undirected ones have one random direction."""
        blocks = list(target_blocks(edges.starts, _EDGES_PER_BLOCK))
        counts = [self._block(edges, *block).shape[1] for block in blocks]
        if not sum(counts):
            raise DataError("no edge is in the train split of links: the relation has too few")
        links = np.asarray(new_array(2 * sum(counts), np.int64)).reshape(2, -1)
        first = 0
        for block, count in zip(blocks, counts, strict=True):
            links[:, first : first + count] = self._turn(self._block(edges, *block))
            first += count
        return links

    def _block(self, edges: GroupedEdges, begin: int, stop: int) -> NDArray[np.int64]:
        """The distinct edges to some targets; of an undirected one, the direction upwards."""
        targets = np.repeat(np.arange(begin, stop), np.diff(edges.starts[begin : stop + 1]))
        sources = edges.sources[edges.starts[begin] : edges.starts[stop]].astype(np.int64)
        pairs = np.stack((sources, targets))
        if self._undirected:
            pairs = pairs[:, sources < targets]
        if not pairs.size:
            return pairs
        is_new = np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0))
        return pairs[:, is_new]

    def _assign(self, sources: NDArray[Any], targets: NDArray[Any]) -> Any:
        return self._split.assign(sources, targets, undirected=self._undirected)

    def _turn(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._undirected:
            return pairs
        return np.where(self._split.is_turned(*pairs), pairs[::-1], pairs)


def _distinct(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    pairs = pairs[:, np.lexsort(pairs)]
    if not pairs.size:
        return pairs
    return pairs[:, np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0))]

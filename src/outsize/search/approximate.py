"""Approximate search over the items of an index, by faiss, with its recall measured.

For indexes so large that exact search is too slow. The structure is built in memory from the items
as they are; items that change later are not seen until it is built again.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from outsize.errors import ConfigError
from outsize.search.item_index import FoundRows, ItemIndex

_MIN_PER_LIST = 39  # faiss warns below this number of training points per list
_BLOCK = 1 << 16


class ApproximateSearch:
    """Searches a snapshot of an index by faiss (extra `faiss`).

    Args:
        index: The index; its items are read once.
        kind: "ivf": vectors in lists by k-means, of which some are searched; "hnsw": a graph of
            neighbours.
        effort: Lists that are searched, or candidates that are kept in the graph; more find more,
            and take longer.
        seed: Of the k-means.
    """

    def __init__(
        self, index: ItemIndex, kind: str = "ivf", *, effort: int = 32, seed: int = 0
    ) -> None:
        if kind not in ("ivf", "hnsw"):
            raise ConfigError(f'kind must be "ivf" or "hnsw", but got {kind!r}')
        if effort < 1:
            raise ConfigError(f"effort must be >= 1, but got {effort}")
        if not len(index):
            raise ConfigError(f"the index in {index.path} has no items to search")
        if find_spec("faiss") is None:
            raise ConfigError("faiss is not installed: pip install 'outsize[faiss]'")
        self._index = index
        self._state = index.state
        self._rows = self._state.facts().rows
        self._engine = self._built(kind, effort, seed)

    def search(self, queries: Float32[Tensor, "q dim"], k: int = 10) -> FoundRows:
        """Items with high inner products, best first; some of the best may be missing."""
        if k < 1:
            raise ConfigError(f"k must be >= 1, but got {k}")
        asked = queries.detach().float().cpu().contiguous().numpy()
        scores, places = self._engine.search(asked, k)
        rows = [self._rows[torch.from_numpy(line[line >= 0])] for line in places]
        names = self._state.versions
        versions = [self._state.facts_of(line).versions.tolist() for line in rows]
        return FoundRows(
            [self._state.keys_of(line) for line in rows],
            np.where(places >= 0, scores, -np.inf).astype(np.float32),
            [[names[place] for place in line] for line in versions],
        )

    def recall(self, queries: Float32[Tensor, "q dim"], k: int = 10) -> float:
        """The share of the exact best `k` items that is found, over some queries."""
        exact = self._index.search(queries, k, count=False).keys
        found = self.search(queries, k).keys
        hits = [len(set(a) & set(b)) for a, b in zip(exact, found, strict=True)]
        return sum(hits) / max(1, sum(map(len, exact)))

    def _built(self, kind: str, effort: int, seed: int) -> Any:
        import faiss

        num, dim = len(self._rows), self._state.manifest.dim
        engine: Any
        if kind == "hnsw":
            engine = faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
            engine.hnsw.efSearch = effort
        else:
            num_lists = max(1, min(int(4 * num**0.5), num // _MIN_PER_LIST))
            lists = faiss.IndexFlatIP(dim)
            engine = faiss.IndexIVFFlat(lists, dim, num_lists, faiss.METRIC_INNER_PRODUCT)
            engine.cp.seed = seed
            engine.nprobe = min(effort, num_lists)
            generator = torch.Generator().manual_seed(seed)
            sample = torch.randperm(num, generator=generator)[: num_lists * 256]
            engine.train(self._state.embeddings(self._rows[sample]).numpy())
        for part in self._rows.split(_BLOCK):
            engine.add(self._state.embeddings(part).numpy())
        return engine

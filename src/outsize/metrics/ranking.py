"""Ranking metrics of retrieval: recall, NDCG, MRR and hit rate.

Relevance is binary. With r relevant items and hits h₁ … h_K (1 if the item at that rank is
relevant):

    recall@k = Σ h / r                          over the first k ranks
    NDCG@k   = Σ h_i / log₂(i + 1)  /  Σ_{i ≤ min(r, k)} 1 / log₂(i + 1)
    MRR@k    = 1 / rank of the first hit, 0 if there is none in the first k
    hit@k    = 1 if there is a hit in the first k

Recall divides by all relevant items, as in the literature on implicit feedback. If r > k it cannot
reach 1; other evaluations divide by min(r, k).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from outsize.errors import ConfigError, DataError
from outsize.ranks.collectives import sum_over_ranks

_ITEM_BITS = 32


class RankingMetrics:
    """Accumulates ranked lists; `result` returns means over the queries so far.

    Sums are float64 on the device of the rankings, so adding a batch does not synchronize CUDA.
    Queries without a relevant item are ignored.

    Args:
        recall_at: Cut-offs k of recall@k.
        ndcg_at: Cut-offs of NDCG@k.
        mrr_at: Cut-offs of MRR@k.
        hit_at: Cut-offs of hit@k.
        device: The device of the rankings.
    """

    def __init__(
        self,
        recall_at: Sequence[int] = (20,),
        ndcg_at: Sequence[int] = (10,),
        mrr_at: Sequence[int] = (10,),
        hit_at: Sequence[int] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self._at = {
            "recall": tuple(recall_at),
            "ndcg": tuple(ndcg_at),
            "mrr": tuple(mrr_at),
            "hit": tuple(hit_at),
        }
        cuts = [k for cuts in self._at.values() for k in cuts]
        if not cuts or min(cuts) < 1:
            raise ConfigError(f"cut-offs of rankings must be >= 1, but got {cuts}")
        self.num_places = max(cuts)
        self.names = tuple(f"{name}@{k}" for name, cuts in self._at.items() for k in cuts)
        self._sums = torch.zeros(1 + len(self.names), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(
        self,
        ranked: Int64[Tensor, "batch places"],
        relevant_values: Int64[Tensor, " n"],
        relevant_offsets: Int64[Tensor, " batch"],
    ) -> None:
        """Add a batch of queries.

        Args:
            ranked: The distinct items of each query, best first; -1 for an empty rank.
            relevant_values: The relevant items of all queries, below 2³²; repeats count once.
            relevant_offsets: The start of each query's items.
        """
        if ranked.shape[1] < self.num_places:
            raise DataError(
                f"rankings of {ranked.shape[1]} places cannot be evaluated at {self.num_places}: "
                "rank more items, and pad with -1 if there are no more"
            )
        hits, num_relevant = find_hits(ranked, relevant_values, relevant_offsets)
        counted = num_relevant > 0
        values = self._values(hits.double(), num_relevant.clamp(min=1))
        values = torch.where(counted.unsqueeze(1), values, 0.0)
        self._sums += torch.cat((counted.sum().double().view(1), values.sum(dim=0)))

    def gather(self) -> RankingMetrics:
        """The metrics over the queries of all ranks; call it on all ranks."""
        whole = copy.copy(self)
        whole._sums = sum_over_ranks(self._sums)
        return whole

    def result(self) -> dict[str, float | None]:
        """The means by name, such as "recall@20", and "num_queries"; `None` without any query."""
        count, *sums = self._sums.tolist()
        means = [value / count if count else None for value in sums]
        return {**dict(zip(self.names, means, strict=True)), "num_queries": int(count)}

    def _values(
        self, hits: Float[Tensor, "batch places"], num_relevant: Int64[Tensor, " batch"]
    ) -> Float[Tensor, "batch metrics"]:
        places = torch.arange(1, hits.shape[1] + 1, device=hits.device).double()
        discounts = 1.0 / torch.log2(places + 1)
        ideal = discounts.cumsum(0)
        # The first hit has the largest reciprocal rank.
        reciprocal = hits / places
        found = [hits[:, :k].sum(dim=1) / num_relevant for k in self._at["recall"]]
        for k in self._at["ndcg"]:
            gained = (hits[:, :k] * discounts[:k]).sum(dim=1)
            found.append(gained / ideal[num_relevant.clamp(max=k) - 1])
        found += [reciprocal[:, :k].amax(dim=1) for k in self._at["mrr"]]
        found += [hits[:, :k].amax(dim=1) for k in self._at["hit"]]
        return torch.stack(found, dim=1)


def find_hits(
    ranked: Int64[Tensor, "batch places"],
    relevant_values: Int64[Tensor, " n"],
    relevant_offsets: Int64[Tensor, " batch"],
) -> tuple[Bool[Tensor, "batch places"], Int64[Tensor, " batch"]]:
    """Which ranks hold a relevant item, and the number of distinct relevant items per query."""
    device = ranked.device
    num_relevant = torch.zeros(ranked.shape[0], dtype=torch.int64, device=device)
    if not relevant_values.shape[0]:
        return torch.zeros_like(ranked, dtype=torch.bool), num_relevant
    # (query, item) as one number, so that a binary search finds a pair.
    positions = torch.arange(relevant_values.shape[0], device=device)
    queries = torch.searchsorted(relevant_offsets, positions, right=True) - 1
    pairs = ((queries << _ITEM_BITS) | relevant_values).sort().values
    is_new = torch.ones_like(pairs)
    is_new[1:] = pairs[1:] != pairs[:-1]
    num_relevant.index_add_(0, pairs >> _ITEM_BITS, is_new)
    asked = (torch.arange(ranked.shape[0], device=device).unsqueeze(1) << _ITEM_BITS) | ranked
    place = torch.searchsorted(pairs, asked).clamp_(max=pairs.shape[0] - 1)
    return (pairs[place] == asked) & (ranked >= 0), num_relevant

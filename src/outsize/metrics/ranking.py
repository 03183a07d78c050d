"""Ranking metrics of retrieval: recall, NDCG, MRR, hit rate and MAP.

With r relevant items and hits h₁ … h_K (1 if the item at that rank is relevant):

    recall@k = Σ h / r                          over the first k ranks
    NDCG@k   = Σ g_i / log₂(i + 1)  /  the same of the ideal ranking
    MRR@k    = 1 / rank of the first hit, 0 if there is none in the first k
    hit@k    = 1 if there is a hit in the first k
    MAP@k    = Σ h_i · (hits in the first i) / i  /  r

The gain g_i of NDCG is 1 for a relevant item, or its grade where relevance is graded (as in
trec_eval), or 2^grade − 1 with `gain="exponential"`. The ideal ranking has all judged items of a
query in decreasing order of their grades. For every other metric, an item with a grade of at least
`min_grade` is relevant: 1, or 2 as in TREC Deep Learning, where grade 1 is for related passages.

Recall and MAP divide by all relevant items, as trec_eval and the literature on implicit feedback
do. If r > k they cannot reach 1; other evaluations divide by min(r, k).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
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
        map_at: Cut-offs of MAP@k.
        gain: How NDCG counts a grade: as it is ("linear"), or as 2^grade − 1 ("exponential"). The
            same without grades.
        min_grade: The smallest grade of a relevant item, for every metric but NDCG.
    """

    def __init__(
        self,
        recall_at: Sequence[int] = (20,),
        ndcg_at: Sequence[int] = (10,),
        mrr_at: Sequence[int] = (10,),
        hit_at: Sequence[int] = (),
        device: torch.device | str = "cpu",
        *,
        map_at: Sequence[int] = (),
        gain: str = "linear",
        min_grade: int = 1,
    ) -> None:
        self._at = {
            "recall": tuple(recall_at),
            "ndcg": tuple(ndcg_at),
            "mrr": tuple(mrr_at),
            "hit": tuple(hit_at),
            "map": tuple(map_at),
        }
        if gain not in ("linear", "exponential"):
            raise ConfigError(f'gain must be "linear" or "exponential", but got {gain!r}')
        if min_grade < 1:
            raise ConfigError(f"min_grade must be >= 1, but got {min_grade}")
        self._gain = gain
        self.min_grade = min_grade
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
        grades: Int64[Tensor, " n"] | None = None,
    ) -> None:
        """Add a batch of queries.

        Args:
            ranked: The distinct items of each query, best first; -1 for an empty rank.
            relevant_values: The relevant items of all queries, below 2³²; repeats count once.
            relevant_offsets: The start of each query's items.
            grades: The grade of each relevant item; 0 or less is judged, and not relevant. Of
                repeats, the highest counts. By default all are 1.
        """
        if ranked.shape[1] < self.num_places:
            raise DataError(
                f"rankings of {ranked.shape[1]} places cannot be evaluated at {self.num_places}: "
                "rank more items, and pad with -1 if there are no more"
            )
        pairs = _JudgedPairs.of(relevant_values, relevant_offsets, grades)
        gains = pairs.grades_of(ranked)
        num_relevant = pairs.num_relevant(len(ranked), self.min_grade)
        counted = num_relevant > 0
        ideal = pairs.ideal(len(ranked), self.num_places) if grades is not None else None
        values = self._values(gains, num_relevant.clamp(min=1), ideal)
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
        self,
        grades: Float[Tensor, "batch places"],
        num_relevant: Int64[Tensor, " batch"],
        ideal_grades: Float[Tensor, "batch most"] | None,
    ) -> Float[Tensor, "batch metrics"]:
        hits = (grades >= self.min_grade).double()
        places = torch.arange(1, hits.shape[1] + 1, device=hits.device).double()
        discounts = 1.0 / torch.log2(places + 1)
        ideal = discounts.cumsum(0)
        # The first hit has the largest reciprocal rank.
        reciprocal = hits / places
        found = [hits[:, :k].sum(dim=1) / num_relevant for k in self._at["recall"]]
        for k in self._at["ndcg"]:
            if ideal_grades is None:
                gained = (hits[:, :k] * discounts[:k]).sum(dim=1)
                found.append(gained / ideal[num_relevant.clamp(max=k) - 1])
            else:
                gained = (self._gains_of(grades[:, :k]) * discounts[:k]).sum(dim=1)
                best = (self._gains_of(ideal_grades[:, :k]) * discounts[:k]).sum(dim=1)
                found.append(gained / best.clamp(min=torch.finfo(best.dtype).tiny))
        found += [reciprocal[:, :k].amax(dim=1) for k in self._at["mrr"]]
        found += [hits[:, :k].amax(dim=1) for k in self._at["hit"]]
        precise = hits * hits.cumsum(dim=1) / places
        found += [precise[:, :k].sum(dim=1) / num_relevant for k in self._at["map"]]
        return torch.stack(found, dim=1)

    def _gains_of(self, grades: Float[Tensor, "batch k"]) -> Float[Tensor, "batch k"]:
        return grades if self._gain == "linear" else torch.exp2(grades) - 1.0


@dataclass(frozen=True)
class _JudgedPairs:
    """Judged (query, item) pairs, each as one number, so that a binary search finds it.

    Repeats stay, with grade 0: to drop them would synchronize CUDA.

    Attributes:
        pairs: The pairs, ascending.
        grades: The grade of each pair at its first place, and 0 at all others; 0 if irrelevant.
    """

    pairs: Int64[Tensor, " n"]
    grades: Int64[Tensor, " n"]

    @classmethod
    def of(
        cls, values: Int64[Tensor, " n"], offsets: Int64[Tensor, " batch"], grades: Tensor | None
    ) -> _JudgedPairs:
        """The pairs of all queries; of repeats, the highest grade counts."""
        positions = torch.arange(values.shape[0], device=values.device)
        queries = torch.searchsorted(offsets, positions, right=True) - 1
        pairs = (queries << _ITEM_BITS) | values
        if grades is None:
            pairs, grades = pairs.sort().values, torch.ones_like(pairs)
        else:
            highest_first = grades.argsort(descending=True, stable=True)
            pairs, order = pairs[highest_first].sort(stable=True)
            grades = grades[highest_first][order].long().clamp(min=0)
        is_new = torch.ones_like(pairs)
        is_new[1:] = pairs[1:] != pairs[:-1]
        return cls(pairs, grades * is_new)

    @property
    def queries(self) -> Int64[Tensor, " n"]:
        """The query of each pair."""
        return self.pairs >> _ITEM_BITS

    def num_relevant(self, num_queries: int, min_grade: int) -> Int64[Tensor, " queries"]:
        """Items of at least this grade per query."""
        counts = torch.zeros(num_queries, dtype=torch.int64, device=self.pairs.device)
        return counts.index_add_(0, self.queries, (self.grades >= min_grade).long())

    def grades_of(self, ranked: Int64[Tensor, "batch places"]) -> Float[Tensor, "batch places"]:
        """The grade of the item at each rank, 0 if it is irrelevant."""
        device = ranked.device
        if not self.pairs.shape[0]:
            return torch.zeros(ranked.shape, dtype=torch.float64, device=device)
        queries = torch.arange(ranked.shape[0], device=device).unsqueeze(1)
        asked = (queries << _ITEM_BITS) | ranked
        place = torch.searchsorted(self.pairs, asked).clamp_(max=self.pairs.shape[0] - 1)
        is_hit = (self.pairs[place] == asked) & (ranked >= 0)
        return torch.where(is_hit, self.grades[place], 0).double()

    def ideal(self, num_queries: int, num_places: int) -> Float[Tensor, "queries places"]:
        """The highest grades of each query in decreasing order, padded with 0."""
        device = self.pairs.device
        order = self.grades.argsort(descending=True, stable=True)
        queries, by_query = self.queries[order].sort(stable=True)
        starts = torch.searchsorted(queries, torch.arange(num_queries, device=device))
        ranks = torch.arange(len(queries), device=device) - starts[queries]
        # Ranks past the last share one more column, which is dropped.
        found = torch.zeros(num_queries, num_places + 1, dtype=torch.float64, device=device)
        found[queries, ranks.clamp(max=num_places)] = self.grades[order][by_query].double()
        return found[:, :num_places]

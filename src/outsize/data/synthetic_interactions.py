"""Synthetic interactions with a known structure.

Queries and items have latent vectors u, v of independent standard normal numbers. A query draws
items without replacement from

    P(item | query) ∝ popularity(item) · exp(u·v / (√latent_dim · temperature)),

with popularity ∝ rank^−skew (Zipf). Draws are exact and fast: they are the items with the largest
log-probability plus Gumbel noise. Of each query's items, in random order, the last is for the test,
the one before it for validation, and the others for training.

Features besides the ids: `query_group` and `item_group`, the random direction nearest to the latent
vector; and `item_tags`, a bag of the latent dimensions in which an item is large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.bounds import require_at_least, require_between
from outsize.data.click_data import Split
from outsize.data.retrieval_data import Entities, Pairs, RetrievalData, RetrievalDataConfig
from outsize.errors import ConfigError
from outsize.hashing import derive_seed

_SCORES_PER_CHUNK = 1 << 22
_LARGE = 1.0


@dataclass(frozen=True)
class SyntheticInteractionsConfig(RetrievalDataConfig):
    """Synthetic interactions.

    Attributes:
        num_queries: Number of queries, such as users.
        num_items: Number of items in the corpus.
        items_per_query: Items per query: two are held out, the others are for training.
        latent_dim: Width of the true vectors.
        temperature: The lower, the more the latent vectors decide; see the module docstring.
        skew: Zipf exponent of the items' popularity; 0 makes all equally popular.
        num_groups: Values of the features `query_group` and `item_group`.
        shuffle: Whether training pairs come in a different order each epoch.
        seed: Seed of the data and of the shuffling.
    """

    num_queries: int = 5_000
    num_items: int = 2_000
    items_per_query: int = 20
    latent_dim: int = 8
    temperature: float = 0.4
    skew: float = 0.8
    num_groups: int = 32
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, 1, "num_queries", "num_items", "latent_dim", "num_groups")
        require_at_least(self, 3, "items_per_query")
        require_between(self, 0, 100, "skew")
        if not self.temperature > 0:
            raise ConfigError(f"temperature must be above 0, but got {self.temperature}")
        require_between(self, 1e-6, 1e6, "temperature")
        if self.num_items < self.items_per_query:
            raise ConfigError(
                f"a query cannot take {self.items_per_query} of {self.num_items} items: raise "
                "num_items or lower items_per_query"
            )

    def build(self) -> RetrievalData:  # noqa: D102
        query_latents = self._normal("queries", self.num_queries)
        item_latents = self._normal("items", self.num_items)
        directions = self._normal("groups", self.num_groups)
        taken = self._take(query_latents, item_latents)
        rows = torch.arange(self.num_queries).unsqueeze(1).expand_as(taken)
        cuts: dict[Split, slice] = {
            "train": slice(0, -2), "validation": slice(-2, -1), "test": slice(-1, None)
        }  # fmt: skip
        pairs: dict[Split, Pairs] = {
            split: (rows[:, cut].flatten(), taken[:, cut].flatten()) for split, cut in cuts.items()
        }
        groups = [
            (latents @ directions.T).argmax(dim=1) for latents in (query_latents, item_latents)
        ]
        numbers = torch.arange(self.latent_dim).expand_as(item_latents)
        queries = Entities(
            self.num_queries,
            {"query": torch.arange(self.num_queries), "query_group": groups[0]},
            {"query": self.num_queries, "query_group": self.num_groups},
        )
        items = Entities(
            self.num_items,
            {
                "item": torch.arange(self.num_items),
                "item_group": groups[1],
                "item_tags": torch.where(item_latents > _LARGE, numbers, -1),
            },
            {"item": self.num_items, "item_group": self.num_groups, "item_tags": self.latent_dim},
        )
        return RetrievalData(queries, items, pairs, "mean", self.shuffle, self.seed)

    def memory_needs(self) -> dict[str, int]:  # noqa: D102
        num_pairs = self.num_queries * self.items_per_query
        num_scores = max(_SCORES_PER_CHUNK, self.num_items)
        num_rows = self.num_queries + self.num_items
        return {
            f"data.num_queries = {self.num_queries:,} with items_per_query = "
            f"{self.items_per_query:,}": num_pairs * 16,
            f"data.num_items = {self.num_items:,}": num_scores * 8,
            f"data.latent_dim = {self.latent_dim:,} for {num_rows:,} queries and items":
                num_rows * self.latent_dim * 4,
            f"data.num_groups = {self.num_groups:,} with latent_dim = {self.latent_dim:,}":
                self.num_groups * (self.latent_dim + max(self.num_queries, self.num_items)) * 4,
        }  # fmt: skip

    def log_popularity(self) -> Float[Tensor, " num_items"]:
        """The log-popularity added to each item's score; popular items are at random rows."""
        ranks = torch.arange(1, self.num_items + 1, dtype=torch.float32)
        order = torch.randperm(self.num_items, generator=self._generator("popularity"))
        return (-self.skew * ranks.log())[order]

    def scores(
        self, queries: Float[Tensor, "n latent_dim"], items: Float[Tensor, "num_items latent_dim"]
    ) -> Float[Tensor, "n num_items"]:
        """The log-probabilities of items up to a constant, given latent vectors."""
        scale = 1 / (math.sqrt(self.latent_dim) * self.temperature)
        return torch.addmm(self.log_popularity(), queries, items.T, alpha=scale)

    def _take(
        self,
        queries: Float[Tensor, "num_queries latent_dim"],
        items: Float[Tensor, "num_items latent_dim"],
    ) -> Int64[Tensor, "num_queries items_per_query"]:
        generator = self._generator("choices")
        taken: list[Tensor] = []
        for part in queries.split(max(1, _SCORES_PER_CHUNK // self.num_items)):
            # The log of an exponential draw is the negative of a Gumbel draw.
            noise = torch.empty(part.shape[0], self.num_items).exponential_(generator=generator)
            best = (self.scores(part, items) - noise.log()).topk(self.items_per_query, dim=1)
            order = torch.rand(best.indices.shape, generator=generator).argsort(dim=1)
            taken.append(best.indices.gather(1, order))
        return torch.cat(taken)

    def _normal(self, name: str, count: int) -> Float[Tensor, "count latent_dim"]:
        return torch.randn(count, self.latent_dim, generator=self._generator(name))

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, name))

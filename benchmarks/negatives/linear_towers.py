"""Two linear towers with closed-form softmax gradients, with and without a stale cache.

Item j has features xⱼ and the embedding eⱼ = xⱼ W, query i has yᵢ and qᵢ = yᵢ V, and the score is
sᵢⱼ = qᵢ · eⱼ. So ∇sᵢⱼ in both weights is (xⱼ ⊗ qᵢ, yᵢ ⊗ eⱼ), and with J drawn from the cache's p̃

    E_J[g] − ∇Lᵢ = β Σⱼ (p̃ⱼ − pⱼ) ∇sᵢⱼ,

which is computed here directly, in float64 and without draws. An embedding xⱼ W moves by at most
‖xⱼ‖ times the change of W: L = maxⱼ ‖xⱼ‖.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor


@dataclass(frozen=True)
class LinearTowers:
    """Features and weights of items and queries.

    Attributes:
        item_features: x.
        query_features: y.
        positives: The positive item of each query.
        item_weight: W.
        query_weight: V.
    """

    item_features: Float64[Tensor, "items width"]
    query_features: Float64[Tensor, "queries width"]
    positives: Int64[Tensor, " queries"]
    item_weight: Float64[Tensor, "width dim"]
    query_weight: Float64[Tensor, "width dim"]

    def items(self) -> Float64[Tensor, "items dim"]:
        """The embeddings of all items."""
        return self.item_features @ self.item_weight

    def queries(self) -> Float64[Tensor, "queries dim"]:
        """The embeddings of all queries."""
        return self.query_features @ self.query_weight


@dataclass(frozen=True)
class StaleSoftmax:
    """Effect of staleness on the softmax of each query.

    Attributes:
        bias: ‖E_J[g] − ∇L‖.
        change_of_chances: ‖p̃ − p‖₁, over the items and the positive.
        change_of_scores: maxⱼ |s̃ⱼ − sⱼ|.
        steepest: M, the largest ‖∇sⱼ‖.
    """

    bias: Float64[Tensor, " queries"]
    change_of_chances: Float64[Tensor, " queries"]
    change_of_scores: Float64[Tensor, " queries"]
    steepest: Float64[Tensor, " queries"]


def make_towers(
    num_items: int, num_queries: int, width: int, dim: int, generator: Generator
) -> LinearTowers:
    """Random towers, with features of norm 1 and embeddings of norm about 1."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    def directions(num: int) -> Tensor:
        return torch.nn.functional.normalize(normal(num, width), dim=1)

    return LinearTowers(
        directions(num_items),
        directions(num_queries),
        torch.randint(num_items, (num_queries,), generator=generator),
        normal(width, dim) / dim**0.5,
        normal(width, dim) / dim**0.5,
    )


def stale_softmax(
    towers: LinearTowers, cached: Float64[Tensor, "items dim"], beta: float
) -> StaleSoftmax:
    """Compare the softmax over a cache with that over fresh items.

    Args:
        towers: The current towers.
        cached: Embeddings in the cache. A query's own positive is scored fresh.
        beta: Inverse temperature β.
    """
    items, queries = towers.items(), towers.queries()
    scores, stale = queries @ items.T, queries @ cached.T
    own = towers.positives.unsqueeze(1)
    stale = stale.scatter(1, own, scores.gather(1, own))
    change = torch.softmax(beta * stale, dim=1) - torch.softmax(beta * scores, dim=1)
    of_items = (change @ towers.item_features).norm(dim=1) * queries.norm(dim=1)
    of_queries = (change @ items).norm(dim=1) * towers.query_features.norm(dim=1)
    squares = torch.outer(queries.square().sum(dim=1), towers.item_features.square().sum(dim=1))
    squares += torch.outer(towers.query_features.square().sum(dim=1), items.square().sum(dim=1))
    return StaleSoftmax(
        beta * torch.hypot(of_items, of_queries),
        change.abs().sum(dim=1),
        (stale - scores).abs().amax(dim=1),
        squares.amax(dim=1).sqrt(),
    )

"""A small two-tower model over ids, and the exact gradient of its loss with or without a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Generator, Tensor, nn

from outsize.negatives import ItemSource, NegativeCache

DIM = 32
_HIDDEN = 64
_WIDTH = 32
_CHUNK = 1024  # queries scored against all items at a time


@dataclass(frozen=True)
class Pairs:
    """Queries with their positive items.

    Attributes:
        items: Features of each item.
        queries: Features of each query.
        positives: The positive item of each query.
    """

    items: Float32[Tensor, "items width"]
    queries: Float32[Tensor, "queries width"]
    positives: Int64[Tensor, " queries"]


def make_pairs(num_items: int, num_queries: int, num_clusters: int, seed: int) -> Pairs:
    """Items in clusters; a query has the rotated features of its item, plus noise."""
    generator = Generator().manual_seed(seed)

    def normal(num: int) -> Tensor:
        return torch.randn(num, _WIDTH, generator=generator)

    centres, member = normal(num_clusters), torch.arange(num_items) % num_clusters
    items = centres[member] + 0.7 * normal(num_items)
    positives = torch.randint(num_items, (num_queries,), generator=generator)
    turn = torch.linalg.qr(normal(_WIDTH)).Q
    queries = items[positives] @ turn + 0.3 * normal(num_queries)
    return Pairs(items / _WIDTH**0.5, queries / _WIDTH**0.5, positives)


class TwoTowers(nn.Module):
    """A tower for queries and one for items: two layers each, and embeddings of norm 1.

    Args:
        pairs: Features of queries and items, by id.
        seed: Seed of the weights.
    """

    def __init__(self, pairs: Pairs, seed: int) -> None:
        super().__init__()
        self.pairs = pairs
        generator = Generator().manual_seed(seed)
        self.weights = nn.ParameterDict()
        for tower in ("queries", "items"):
            for layer, shape in (("first", (_WIDTH, _HIDDEN)), ("second", (_HIDDEN, DIM))):
                drawn = torch.randn(*shape, generator=generator) * (2 / shape[0]) ** 0.5
                self.weights[f"{tower}_{layer}"] = nn.Parameter(drawn)

    def encode_queries(self, ids: Int64[Tensor, " n"]) -> Float32[Tensor, "n dim"]:
        """Embeddings of queries."""
        return self._encode("queries", self.pairs.queries[ids])

    def encode_items(self, features: Mapping[str, Tensor]) -> Float32[Tensor, "n dim"]:
        """Embeddings of items, given by id."""
        return self._encode("items", self.pairs.items[features["id"]])

    def source(self) -> ItemSource:
        """All items, as a source of negatives."""
        num_items = len(self.pairs.items)
        return ItemSource(num_items, DIM, lambda keys: {"id": keys}, self.encode_items)

    def _encode(self, tower: str, features: Tensor) -> Tensor:
        hidden = torch.tanh(features @ self.weights[f"{tower}_first"])
        return nn.functional.normalize(hidden @ self.weights[f"{tower}_second"], dim=1)


@dataclass(frozen=True)
class Expected:
    """Expectation over draws of the loss and gradient of a batch of all queries.

    Attributes:
        loss: The mean of −log p⁺.
        gradient: The gradient of all weights, as one vector.
    """

    loss: float
    gradient: Float32[Tensor, " weights"]


def expected_gradient(
    towers: TwoTowers, beta: float, cache: NegativeCache | None = None
) -> Expected:
    """Mean over all queries of −β∇s⁺ + Σⱼ p̃ⱼ β∇sⱼ, with p̃ over the cache and the positive.

    Without a cache, p̃ is p over all fresh items: the exact loss and its gradient.
    """
    with torch.enable_grad():
        queries = towers.encode_queries(torch.arange(len(towers.pairs.queries)))
        items = towers.encode_items({"id": torch.arange(len(towers.pairs.items))})
    keys, cached, log_weights = _held(items.detach(), cache)
    place = torch.full((len(items),), -1).index_put_((keys,), torch.arange(len(keys)))
    fresh, num = items.detach()[keys], len(queries)
    of_queries = torch.empty_like(queries)
    of_items = torch.zeros_like(items)
    of_held = torch.zeros_like(fresh)
    loss = 0.0
    for start in range(0, num, _CHUNK):
        some = queries.detach()[start : start + _CHUNK]
        own = towers.pairs.positives[start : start + _CHUNK]
        right = items.detach()[own]
        logits = beta * (some @ cached.T) + log_weights
        rows = place[own]
        where = (rows >= 0).nonzero().flatten()
        logits[where, rows[where]] = -torch.inf
        positive = beta * (some * right).sum(dim=1)
        whole = torch.logaddexp(logits.logsumexp(dim=1), positive)
        loss += (whole - positive).sum().item() / num
        chances = logits.sub_(whole.unsqueeze(1)).exp_().mul_(beta / num)
        pull = (torch.exp(positive - whole) - 1).mul_(beta / num).unsqueeze(1)
        of_queries[start : start + _CHUNK] = chances @ fresh + pull * right
        of_held += chances.T @ some
        of_items.index_add_(0, own, pull * some)
    of_items.index_add_(0, keys, of_held)
    weights = list(towers.parameters())
    parts = torch.autograd.grad((queries, items), weights, (of_queries.detach(), of_items.detach()))
    return Expected(loss, torch.cat([part.flatten() for part in parts]))


def _held(
    items: Float[Tensor, "items dim"], cache: NegativeCache | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, embeddings and log-weights of the items that queries are scored against."""
    if cache is None:
        return torch.arange(len(items)), items, torch.zeros(len(items))
    scored = cache.scored()
    rows = torch.isfinite(scored.log_weights).nonzero().flatten()
    return cache.keys[rows], cache.items.embeddings_at(rows), scored.log_weights[rows]

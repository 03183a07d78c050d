"""Mean and variance of gradients estimated from draws of a cache.

Each estimator of `cached_softmax` should have the expectation −β∇s⁺ + Σⱼ p̃ⱼ β∇sⱼ, with p̃ the
softmax over the cache and the positive: the exact gradient if the cache is fresh. Gradients are
taken with respect to queries, the weight of a linear item tower and β, by autograd through the real
code. The estimators differ in variance, which falls as 1/k with k draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Generator, Tensor

from outsize.negatives import ESTIMATORS, NegativeCache, cached_softmax

_BETA = 3.0
_ROUNDING = 3e-7  # of the largest gradient: float32 error of an estimate without variance


@dataclass(frozen=True)
class Setting:
    """Queries, items and a cache of them.

    Attributes:
        features: Features of the items, which a learned weight encodes.
        positives: The positive item of each query.
        cached: Embeddings of the items in the cache.
        leaves: Tensors with gradients: queries, the weight and β.
    """

    features: Tensor
    positives: Tensor
    cached: Tensor
    leaves: tuple[Tensor, Tensor, Tensor]

    @property
    def staleness(self) -> float:
        """Mean of ‖cached − fresh‖² / ‖fresh‖²."""
        fresh = (self.features @ self.leaves[1]).detach()
        apart = (self.cached - fresh).square().sum(dim=1)
        return (apart / fresh.square().sum(dim=1)).mean().item()

    @property
    def p_positive(self) -> list[float]:
        """p̃⁺ of each query."""
        own = self.positives.unsqueeze(1)
        return self.chances().gather(1, own).flatten().tolist()

    def chances(self) -> Float[Tensor, "queries items"]:
        """p̃, with a fresh embedding of the query's own positive."""
        queries, weight, beta = (leaf.detach() for leaf in self.leaves)
        own = self.positives.unsqueeze(1)
        fresh = (queries * (self.features[self.positives] @ weight)).sum(dim=1, keepdim=True)
        stale = (queries @ self.cached.T).scatter(1, own, fresh)
        return torch.softmax(beta * stale, dim=1)


def make_setting(staleness: float, num_items: int = 64, dim: int = 8, seed: int = 0) -> Setting:
    """A random setting; cached items have a squared relative error of about `staleness`."""
    generator = Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        drawn: Tensor = torch.randn(*shape, generator=generator) / dim**0.5
        return drawn

    unit = torch.nn.functional.normalize
    features, weight = normal(num_items, dim), normal(dim, dim)
    cached = features @ (weight + staleness**0.5 * normal(dim, dim))
    positives = torch.randint(num_items, (8,), generator=generator)
    # Queries as in a partly trained model: some positives are likely, some are not.
    towards = unit(features[positives] @ weight)
    queries = unit(normal(8, dim) + torch.linspace(0, 2, 8).unsqueeze(1) * towards)
    leaves = (queries.requires_grad_(), weight.requires_grad_(), torch.tensor(_BETA))
    leaves[2].requires_grad_()
    return Setting(features, positives, cached, leaves)


def expected_gradient(setting: Setting) -> Float64[Tensor, " coordinates"]:
    """−β∇s⁺ + Σⱼ p̃ⱼ β∇sⱼ, mean over queries, for all leaves as one vector."""
    queries, weight, beta = setting.leaves
    logits = beta * (queries @ (setting.features @ weight).T)
    own = setting.positives.unsqueeze(1)
    losses = (setting.chances() * logits).sum(dim=1) - logits.gather(1, own).squeeze(1)
    return _as_one_vector(torch.autograd.grad(losses.mean(), setting.leaves))


def estimates(
    setting: Setting, estimator: str, num: int, turns: int, seed: int = 0
) -> Float64[Tensor, "turns coordinates"]:
    """Gradients of many turns, with `num` draws per query in each."""
    queries, weight, beta = setting.leaves
    num_items, dim = setting.cached.shape
    cache = NegativeCache(num_items, dim, precision="float32", seed=seed)
    cache.push(None, setting.cached, torch.arange(num_items))
    found = []
    for _ in range(turns):
        options = ESTIMATORS[estimator].draw_options()
        draw = cache.sample(queries, num, beta, setting.positives, **options)
        positives = setting.features[setting.positives] @ weight
        drawn = setting.features[draw.keys] @ weight
        result = cached_softmax(queries, positives, drawn, draw, beta, estimator)
        found.append(_as_one_vector(torch.autograd.grad(result.loss, setting.leaves)))
    return torch.stack(found)


def spread_row(setting: Setting, estimator: str, num: int, turns: int) -> dict[str, Any]:
    """Distance of an estimator's mean from its expectation, and its variances."""
    seed = list(ESTIMATORS).index(estimator)  # so that no two estimators share draws
    found, expected = estimates(setting, estimator, num, turns, seed), expected_gradient(setting)
    variance = found.var(dim=0)
    error = torch.hypot((variance / turns).sqrt(), _ROUNDING * expected.abs().max())
    z = ((found.mean(dim=0) - expected) / error).abs()
    sizes = [leaf.numel() for leaf in setting.leaves]
    of_queries, of_items, of_beta = (part.sum().item() for part in variance.split(sizes))
    return {
        "staleness": setting.staleness,
        "p_positive": setting.p_positive,
        "estimator": estimator,
        "k": num,
        "coordinates": len(z),
        "largest_z": z.max().item(),
        "beyond_2": (z > 2).double().mean().item(),
        "of_queries": of_queries,
        "of_items": of_items,
        "of_beta": of_beta,
    }


def spread_rows(turns: int, draws: Sequence[int], stalenesses: Sequence[float]) -> list[Any]:
    """All estimators, with a fresh cache and stale ones."""
    settings = [make_setting(staleness) for staleness in stalenesses]
    return [
        spread_row(setting, estimator, num, turns)
        for setting in settings
        for num in draws
        for estimator in ESTIMATORS
    ]


def section(rows: Sequence[dict[str, Any]], turns: int) -> str:
    """The results as Markdown."""
    lines = [
        "## The estimators: bias and variance\n",
        f"Mean of {turns:,} gradients in 8 queries, the weight of the item tower and β, drawn from "
        f"64 items at β = {_BETA:g} (p⁺ from {min(rows[0]['p_positive']):.2g} to "
        f"{max(rows[0]['p_positive']):.2g}), less −β∇s⁺ + Σ p̃ⱼ β∇sⱼ, in standard errors. It is "
        f"unbiased where the largest of {rows[0]['coordinates']} |z| is what chance gives (about "
        "2.9, seldom above 4) and about 5% are beyond 2. With a fresh cache that expectation is "
        "the exact gradient. *Staleness* is the mean of ‖cached − fresh‖²/‖fresh‖². Variances are "
        "sums over coordinates; *removed* is the share of the weighted estimator's variance in "
        "queries that the control variate takes out.\n",
        "| staleness | k | estimator | largest \\|z\\| | beyond 2 | variance in queries | in items "
        "| in β | removed |",
        "|--:|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    weighted = {
        (row["staleness"], row["k"]): row["of_queries"]
        for row in rows
        if row["estimator"] == "weighted"
    }
    for row in rows:
        removed = ""
        if row["estimator"] == "control-variate":
            share = 1 - row["of_queries"] / weighted[row["staleness"], row["k"]]
            removed = f"{share:.1%}"
        lines.append(
            f"| {row['staleness']:.2g} | {row['k']} | {row['estimator']} | {row['largest_z']:.2f} "
            f"| {row['beyond_2']:.1%} | {row['of_queries']:.2g} | {row['of_items']:.2g} | "
            f"{row['of_beta']:.2g} | {removed} |"
        )
    return "\n".join(lines) + "\n"


def _as_one_vector(parts: Sequence[Tensor]) -> Float64[Tensor, " coordinates"]:
    return torch.cat([part.flatten() for part in parts]).double()

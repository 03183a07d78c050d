"""The softmax over a uniform sample of a corpus, compared with that over all of it (Lemma 4).

Of m items the cache holds a uniform sample S of c = αm. With every held item counted 1/α times,

    U = exp(βs⁺) β∇s⁺ + (1/α) Σ_S exp(βsⱼ) β∇sⱼ,   V = exp(βs⁺) + (1/α) Σ_S exp(βsⱼ)

have the means of the whole corpus, and the bias of E[g] = E[U/V] − β∇s⁺ is that of E[U/V] against
E[U]/E[V], exp(O(β)) M/(αm). Without the 1/α the positive weighs too much by a factor of 1/α, a bias
that remains even if S is so large that U/V does not vary.

The expectation over J is exact and that over S is a mean over many samples. With r = E[U]/E[V],

    E[U/V] − r = E[(U − rV)(1/V − 1/E[V])],

since U − rV has mean 0: the averaged values are then as small as the bias itself, not 1/√c. As S is
drawn without replacement the bias is proportional to 1/c − 1/m, and 0 for the whole corpus.
Gradients are taken with respect to the query: ∇sⱼ = eⱼ, and M = 1 as embeddings have norm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from benchmarks.slopes import slope_of_logs
from outsize.negatives import NegativeCache

_CHUNK = 1 << 20  # numbers in memory at a time; sets the samples per chunk


class Corpus:
    """Items on the unit sphere, and a query that equals its positive, item 0.

    Args:
        num_items: m.
        beta: β.
        dim: Numbers per embedding.
        seed: Seed of the draws.
    """

    def __init__(self, num_items: int, beta: float, dim: int = 8, seed: int = 0) -> None:
        generator = Generator().manual_seed(seed)
        drawn = torch.randn(num_items + 1, dim, dtype=torch.float64, generator=generator)
        unit = torch.nn.functional.normalize(drawn, dim=1)
        self.items, self.query, self.beta = unit[1:], unit[0], beta
        self.items[0] = self.query
        # Dividing all by exp(β) changes no ratio and keeps them in range.
        self.masses = torch.exp(beta * (self.items @ self.query - 1))

    def sums(
        self, held: Float64[Tensor, "samples items"]
    ) -> tuple[Float64[Tensor, "samples dim"], Float64[Tensor, "samples 1"]]:
        """U and V if item j counts `held[j]` times and the positive once."""
        masses = held * self.masses
        masses[:, 0] = self.masses[0]
        return self.beta * (masses @ self.items), masses.sum(dim=1, keepdim=True)


def bias_row(corpus: Corpus, num_held: int, num_samples: int, seed: int = 0) -> dict[str, Any]:
    """Bias ‖E[U/V] − E[U]/E[V]‖ at one sample size, and its standard error.

    Args:
        corpus: The items.
        num_held: c.
        num_samples: Number of samples in the mean.
        seed: Seed of the samples.
    """
    generator = Generator().manual_seed(seed)
    num_items = len(corpus.items)
    exact = corpus.beta * (corpus.masses @ corpus.items) / corpus.masses.sum()
    weighted, plain = [], []
    per_chunk = max(1, _CHUNK // num_items)
    for start in range(0, num_samples, per_chunk):
        num = min(per_chunk, num_samples - start)
        chosen = torch.rand(num, num_items, generator=generator).topk(num_held, dim=1).indices
        held = torch.zeros(num, num_items, dtype=torch.float64).scatter_(1, chosen, 1.0)
        upper, lower = corpus.sums(held * (num_items / num_held))
        weighted.append((upper - lower * exact) * (1 / lower - 1 / corpus.masses.sum()))
        upper, lower = corpus.sums(held)
        plain.append(upper / lower - exact)
    values = torch.cat(weighted)
    return {
        "c": num_held,
        "alpha": num_held / num_items,
        "bias": values.mean(dim=0).norm().item(),
        "error": (values.var(dim=0).sum().item() / num_samples) ** 0.5,
        "plain": torch.cat(plain).mean(dim=0).norm().item(),
    }


def cache_gap(corpus: Corpus, num_held: int, num_samples: int, seed: int = 0) -> float:
    """Largest difference between U/V of a real cache and the formula, over some samples.

    The cache holds float32; its log-partition and mean embedding give U/V for the query.
    """
    generator = Generator().manual_seed(seed)
    num_items, dim = corpus.items.shape
    gap = 0.0
    for _ in range(num_samples):
        keys = torch.randperm(num_items, generator=generator)[:num_held]
        cache = NegativeCache(num_held, dim, precision="float32", corpus_size=num_items)
        cache.push(None, corpus.items[keys].float(), keys)
        query = corpus.query.float().unsqueeze(0)
        draw = cache.sample(query, 0, corpus.beta, exclude=torch.tensor([0]), with_mean=True)
        assert draw.mean_embedding is not None
        positive = corpus.beta * (corpus.query @ corpus.items[0])
        chance = torch.sigmoid(positive - draw.log_partition.double())
        mixed = torch.lerp(draw.mean_embedding.double(), corpus.items[:1], chance)
        held = torch.zeros(1, num_items, dtype=torch.float64)
        held[:, keys] = num_items / num_held
        upper, lower = corpus.sums(held)
        gap = max(gap, (corpus.beta * mixed - upper / lower).abs().max().item())
    return gap


def bias_rows(
    beta: float, num_items: int, sizes: Sequence[int], num_samples: int
) -> dict[str, Any]:
    """Bias at several sample sizes, with and without 1/α, and its slope against 1/c − 1/m."""
    corpus = Corpus(num_items, beta)
    rows = [bias_row(corpus, size, num_samples) for size in sizes]
    left_out = [1 / size - 1 / num_items for size in sizes]
    biases = [row["bias"] for row in rows]
    return {
        "beta": beta,
        "m": num_items,
        "p_positive": (corpus.masses[0] / corpus.masses.sum()).item(),
        "rows": rows,
        "slope": slope_of_logs(left_out, biases),
        "last_slope": slope_of_logs(left_out[-2:], biases[-2:]),
        "gap": cache_gap(corpus, sizes[0], 8),
    }


def section(groups: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    sizes = [row["c"] for row in groups[0]["rows"]]
    lines = [
        "## Lemma 4: a uniform sample of the corpus\n",
        f"{groups[0]['m']:,} items on a sphere, of which a cache holds c = αm. The bias of the "
        "expected gradient in the query, ‖E[U/V] − E[U]/E[V]‖, as a share of βM (M = 1); below it "
        "that of a cache that does not count its items 1/α times. The lemma holds where the "
        "slope of log bias against log(1/c − 1/m) is 1 (its 1/(αm), for samples without "
        "replacement), for all c or, where a few items make up most of V, for the largest two. "
        "*Times αm* is the largest bias times αm, which the lemma has as exp(O(β)).\n",
        f"| β | p⁺ | slope (last two) | {' | '.join(f'c = {size:,}' for size in sizes)} | "
        "times αm |",
        "|--:|--:|--:|" + "--:|" * (len(sizes) + 1),
    ]
    for group in groups:
        beta = group["beta"]
        shares = " | ".join(
            f"{row['bias'] / beta:.2g} ± {row['error'] / beta:.1g}" for row in group["rows"]
        )
        scaled = max(row["bias"] * row["c"] for row in group["rows"])
        lines.append(
            f"| {beta:g} | {group['p_positive']:.2g} | {group['slope']:.2f} "
            f"({group['last_slope']:.2f}) | {shares} | {scaled:.3g} |"
        )
        plain = " | ".join(f"{row['plain'] / beta:.2g}" for row in group["rows"])
        lines.append(f"| {beta:g} | | without 1/α | {plain} | |")
    gap = max(group["gap"] for group in groups)
    lines.append(
        "\n`NegativeCache(corpus_size=m)` has these U/V: from its log-partition and mean embedding "
        f"they differ from the formula by at most {gap:.1g} in any coordinate."
    )
    return "\n".join(lines) + "\n"

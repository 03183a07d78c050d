"""How the bias of a cache grows with the age of its rows (Theorem 2).

Two linear towers are trained by SGD with draws from a cache. After each step the ρ·C oldest rows
are encoded again, so that none is older than k = 1/ρ − 1 steps (`oldest` and `rewrite`; drawn rows
are not written back here, so that only ρ keeps the cache fresh). The paper states

    ‖E[g] − ∇L‖ ≤ 4ηβ³LM²k,

for steps of length ηβM. An estimate can be as long as 2βM, so the correct bound is 8ηβ³LM²k. Both
bias and bound are linear in k as long as the descent keeps its direction: k steps in one direction
move k times as far as one, k steps of noise only √k times. Ages of rows are 0 to k steps, and if
rows drift independently the root mean square of their ages counts, √(k(2k + 1)/6), which grows a
little more slowly than k.

Both are also linear in η. With η of the order 1/√T the squared bias is of the order 1/T, the
staleness term of Theorem 3.

The bias is exact, from the cache's embeddings and the current towers, at several steps after the
first round of sweeps. M, L and the norm of queries are the largest observed values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from benchmarks.negatives.linear_towers import LinearTowers, make_towers, stale_softmax
from benchmarks.slopes import slope_of_logs
from outsize.negatives import NegativeCache, cached_softmax

_NUM_DRAWS = 16


def sweep_row(
    towers: LinearTowers,
    refresh: float,
    beta: float,
    learning_rate: float,
    batch_size: int,
    steps: int,
    seed: int = 0,
) -> dict[str, Any]:
    """Train with a cache swept at ρ, and measure the bias after the first round of sweeps.

    Args:
        towers: Where training starts.
        refresh: ρ; 1/ρ should divide the number of items.
        beta: β.
        learning_rate: η.
        batch_size: Queries per step.
        steps: Steps after the first 1/ρ.
        seed: Seed of batches and draws.
    """
    generator = Generator().manual_seed(seed)
    num_items, dim = towers.items().shape
    num_due, first = round(refresh * num_items), round(1 / refresh)
    cache = NegativeCache(num_items, dim, precision="float32", seed=seed)
    cache.push(None, towers.items().float(), torch.arange(num_items))
    found = []
    oldest = 0
    for step in range(first + steps):
        batch = torch.randperm(len(towers.positives), generator=generator)[:batch_size]
        gradients = _estimate(towers, cache, batch, beta)
        towers = replace(
            towers,
            item_weight=towers.item_weight - learning_rate * gradients[0],
            query_weight=towers.query_weight - learning_rate * gradients[1],
        )
        cache.commit()
        due = cache.oldest(num_due)
        cache.rewrite(due, towers.items()[due.keys].float())
        if step >= first and step % 4 == 0:
            oldest = max(oldest, int(cache.ages().max()))
            cached = cache.items.embeddings_at(cache.rows_of(torch.arange(num_items))).double()
            stale = stale_softmax(towers, cached, beta)
            found.append((stale, towers.queries().norm(dim=1).max()))
    bias = torch.stack([stale.bias for stale, _ in found])
    steepest = torch.stack([stale.steepest for stale, _ in found]).max().item()
    moved = torch.stack([stale.change_of_scores for stale, _ in found])
    lipschitz = towers.item_features.norm(dim=1).max().item()
    longest = max(norm.item() for _, norm in found)  # the paper assumes ‖q‖ ≤ 1
    drift = 2 * learning_rate * beta * steepest * lipschitz * longest * oldest
    return {
        "rho": refresh,
        "k": oldest,
        "bias": bias.mean().item(),
        "largest": bias.max().item(),
        "by_scores": 4 * beta**2 * steepest * moved.max().item(),
        "bound": 4 * beta**2 * steepest * drift,
        "most": 2 * beta * steepest,
    }


def sweep_group(
    beta: float,
    learning_rate: float,
    batch_size: int,
    refreshes: Sequence[float],
    sizes: tuple[int, int] = (256, 64),
    steps: int = 64,
) -> dict[str, Any]:
    """Biases at several ρ from the same start, and their slope against 1/ρ − 1."""
    towers = make_towers(*sizes, width=16, dim=16, generator=Generator().manual_seed(1))
    rows = [
        sweep_row(towers, refresh, beta, learning_rate, batch_size, steps) for refresh in refreshes
    ]
    stale = [row for row in rows if row["k"]]
    return {
        "beta": beta,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "rows": rows,
        "vacuous_from": rows[-1]["k"] * rows[-1]["most"] / rows[-1]["bound"],
        "slope": slope_of_logs([row["k"] for row in stale], [row["bias"] for row in stale]),
        "last_slope": slope_of_logs(
            [row["k"] for row in stale[-2:]], [row["bias"] for row in stale[-2:]]
        ),
        "age_slope": slope_of_logs(
            [row["k"] for row in stale], [row["k"] * (2 * row["k"] + 1) for row in stale]
        )
        / 2,
    }


def rate_slope(
    beta: float, rates: Sequence[float], refresh: float = 1 / 8, steps: int = 16
) -> dict[str, Any]:
    """Slope of the bias against η at one ρ, from the same start and over equal steps."""
    towers = make_towers(256, 64, width=16, dim=16, generator=Generator().manual_seed(1))
    rows = [sweep_row(towers, refresh, beta, rate, 64, steps) for rate in rates]
    slope = slope_of_logs(rates, [row["bias"] for row in rows])
    return {"beta": beta, "rho": refresh, "rates": list(rates), "slope": slope}


def section(groups: Sequence[dict[str, Any]], by_rate: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "## Theorem 2: the bias of a cache that is swept at ρ\n",
        "Training of two linear towers; the exact bias of single queries, their mean and the "
        "largest, as a share of 2βM, which none can exceed. The theorem holds, with steps of "
        "length 2ηβM, where *largest* is at most *bound* = 8ηβ³LM²k, k the age of the oldest row "
        "(1/ρ − 1). *By scores* is 4β²M‖s̃ − s‖∞ with the scores as they were. A bound of 1 or "
        "more says nothing. The bias is linear in 1/ρ − 1 where the slope of the logarithms is "
        f"from {groups[0]['age_slope']:.2f} (the slope of the root mean square of ages from 0 to "
        "k) to 1. Steps that are mostly noise, of small batches or few draws at a large β, add up "
        "to √k and make it less while k is small.\n",
        "| β | η | batch | slope (last two) | ρ | k | mean | largest | by scores | bound |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for group in groups:
        for row in group["rows"]:
            shares = (row[name] / row["most"] for name in ("bias", "largest", "by_scores", "bound"))
            lines.append(
                f"| {group['beta']:g} | {group['learning_rate']:g} | {group['batch_size']} | "
                f"{group['slope']:.2f} ({group['last_slope']:.2f}) | {row['rho']:.4g} | "
                f"{row['k']} | " + " | ".join(f"{share:.2g}" for share in shares) + " |"
            )
    limits = "; ".join(
        f"k = {group['vacuous_from']:.2g} at β = {group['beta']:g} and η = "
        f"{group['learning_rate']:g}"
        for group in groups
    )
    lines.append(
        f"\nAt ρ = {by_rate['rho']:g} and β = {by_rate['beta']:g} the slope of log bias against "
        f"log η is {by_rate['slope']:.3f} over η from {by_rate['rates'][0]:g} to "
        f"{by_rate['rates'][-1]:g}: where it is 1 and η = O(1/√T), bias² = O(1/T)."
    )
    lines.append(f"\nThe bound says nothing from these k = 1/(4ηβ²LM) on: {limits}.")
    return "\n".join(lines) + "\n"


def _estimate(
    towers: LinearTowers, cache: NegativeCache, batch: Tensor, beta: float
) -> tuple[Tensor, ...]:
    """Gradients of both weights, estimated from draws of the cache."""
    weights = tuple(
        weight.float().requires_grad_() for weight in (towers.item_weight, towers.query_weight)
    )
    features = towers.item_features.float()
    queries = towers.query_features[batch].float() @ weights[1]
    own = towers.positives[batch]
    draw = cache.sample(queries, _NUM_DRAWS, beta, exclude=own)
    result = cached_softmax(
        queries, features[own] @ weights[0], features[draw.keys] @ weights[0], draw, beta
    )
    return tuple(part.double() for part in torch.autograd.grad(result.loss, weights))

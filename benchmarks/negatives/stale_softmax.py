"""How far stale scores can move the gradient of a softmax (proof of Theorem 2).

With s̃ the scores from a cache and s the true ones, p̃ and p their softmax at β, and M a bound on
‖∇sⱼ‖, the paper proves for any stale scores

    ‖∇ − ∇̃‖ ≤ β M ‖p − p̃‖₁   and   ‖p − p̃‖₁ ≤ 4 β ‖s̃ − s‖∞,   so   ‖∇ − ∇̃‖ ≤ 4 β² M ‖s̃ − s‖∞.

The second bound is loose: the odds of any set of items change by at most exp(2β‖s̃ − s‖∞), which
gives ‖p − p̃‖₁ ≤ 2 tanh(β‖s̃ − s‖∞ / 2). That is at most β‖s̃ − s‖∞, a quarter of the paper's bound,
and at most 2; two opposite items reach it. So at most a quarter of the paper's bound is ever
reached, and from β‖s̃ − s‖∞ = 1/2 on it is weaker than ‖∇ − ∇̃‖ ≤ 2βM, which holds for any cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from benchmarks.negatives.linear_towers import LinearTowers, make_towers, stale_softmax
from benchmarks.slopes import slope_of_logs

_SMALL = 0.02  # β‖s̃ − s‖∞ below which the bias should be linear


def bound_row(beta: float, num_problems: int, seed: int = 0) -> dict[str, Any]:
    """Largest share of each bound that random problems reach, at one β.

    Number of items, widths and staleness vary between problems, and staleness between items.
    """
    generator = Generator().manual_seed(seed)
    shares = {"of_bound": 0.0, "of_chances": 0.0, "chances": 0.0, "tanh": 0.0, "of_most": 0.0}
    num_queries = num_vacuous = 0
    for _ in range(num_problems):
        sizes = torch.rand(4, generator=generator).tolist()
        num_items, dim = int(2 * 256 ** sizes[0]), int(2 * 16 ** sizes[1])
        towers = make_towers(num_items, 8, int(2 * 16 ** sizes[2]), dim, generator)
        cached = _stale(towers, 1e-3 * 3e3 ** sizes[3], generator)
        for name, share in shares_of_bounds(towers, cached, beta).items():
            shares[name] = max(shares[name], share)
        moved = stale_softmax(towers, cached, beta).change_of_scores
        num_queries += len(moved)
        num_vacuous += int((beta * moved >= 0.5).sum())
    return {"beta": beta, "queries": num_queries, "vacuous": num_vacuous / num_queries, **shares}


def shares_of_bounds(
    towers: LinearTowers, cached: Float64[Tensor, "items dim"], beta: float
) -> dict[str, float]:
    """Largest share of each bound over the queries of one problem; all must be at most 1."""
    found = stale_softmax(towers, cached, beta)
    moved = beta * found.change_of_scores
    most = beta * found.steepest
    return {
        "of_bound": (found.bias / (4 * most * moved)).max().item(),
        "of_chances": (found.bias / (most * found.change_of_chances)).max().item(),
        "chances": (found.change_of_chances / (4 * moved)).max().item(),
        "tanh": (found.change_of_chances / (2 * torch.tanh(moved / 2))).max().item(),
        "of_most": (found.bias / (2 * most)).max().item(),
    }


def opposite_items(
    change: float, num_items: int = 2000
) -> tuple[LinearTowers, Float64[Tensor, "items 1"]]:
    """The worst case: items of two opposite kinds whose scores are exchanged.

    Args:
        change: ‖s̃ − s‖∞.
        num_items: Number of items; one is the query's positive, whose score is fresh.
    """
    kinds = torch.ones(num_items, 1, dtype=torch.float64)
    kinds[num_items // 2 :] = -1
    one = torch.ones(1, 1, dtype=torch.float64)
    towers = LinearTowers(kinds, one, torch.tensor([0]), -change / 2 * one, one)
    return towers, -towers.items()


def linearity_row(beta: float, num_items: int, seed: int = 0) -> dict[str, Any]:
    """The bias as the same items grow staler, and its slope while staleness is small."""
    generator = Generator().manual_seed(seed)
    towers = make_towers(num_items, 32, 16, 16, generator)
    direction = _stale(towers, 1.0, generator) - towers.items()
    points: list[dict[str, float]] = []
    for exponent in range(-20, 5):
        found = stale_softmax(towers, towers.items() + 2.0**exponent * direction, beta)
        points.append(
            {
                "moved": beta * found.change_of_scores.mean().item(),
                "bias": found.bias.mean().item(),
                "of_most": (found.bias / (2 * beta * found.steepest)).mean().item(),
            }
        )
    small = [point for point in points if point["moved"] <= _SMALL]
    return {
        "beta": beta,
        "slope": slope_of_logs([p["moved"] for p in small], [p["bias"] for p in small]),
        "num_small": len(small),
        "points": points,
    }


def section(rows: Sequence[dict[str, Any]], worst: dict[str, float], lines: Sequence[Any]) -> str:
    """The results as Markdown."""
    text = [
        "## Theorem 2, whatever made the scores stale\n",
        "Random problems of 2 to 500 items and embeddings of 2 to 32 numbers, items stale by "
        "unequal amounts. Each column is the largest share of a bound that any query reached; the "
        "statements hold where all are at most 1. *Says nothing* is the share of queries for which "
        "4β²M‖s̃ − s‖∞ is more than 2βM, which the bias cannot exceed.\n",
        "| β | queries | of 4β²M‖s̃ − s‖∞ | of βM‖p − p̃‖₁ | ‖p − p̃‖₁ of 4β‖s̃ − s‖∞ | "
        "of 2 tanh(β‖s̃ − s‖∞/2) | of 2βM | says nothing |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        text.append(
            f"| {row['beta']:g} | {row['queries']:,} | {row['of_bound']:.4f} | "
            f"{row['of_chances']:.3f} | {row['chances']:.4f} | {row['tanh']:.4f} | "
            f"{row['of_most']:.3f} | {row['vacuous']:.0%} |"
        )
    text.append(
        f"\nItems of two opposite kinds reach {worst['of_bound']:.4f} of the first bound and "
        f"{worst['tanh']:.4f} of the one with tanh: the paper's constant 4 could be 1.\n"
    )
    shown = range(4, 25, 4)
    text += [
        "The same items, ever staler: mean bias as a share of 2βM, by how far scores moved on "
        "average (β‖s̃ − s‖∞ of the first β; the others in proportion). The bias is linear in the "
        f"staleness where the slope of the logarithms, up to β‖s̃ − s‖∞ = {_SMALL}, is 1.\n",
        "| β | slope | "
        + " | ".join(f"{lines[0]['points'][i]['moved']:.2g}" for i in shown)
        + " |",
        "|--:|--:|" + "--:|" * len(shown),
    ]
    for line in lines:
        shares = " | ".join(f"{line['points'][i]['of_most']:.2g}" for i in shown)
        text.append(f"| {line['beta']:g} | {line['slope']:.4f} | {shares} |")
    return "\n".join(text) + "\n"


def _stale(
    towers: LinearTowers, scale: float, generator: Generator
) -> Float64[Tensor, "items dim"]:
    """Items with an error of up to `scale` times their norm, a different one for each."""
    items = towers.items()
    noise = torch.randn(items.shape, dtype=items.dtype, generator=generator)
    amount = scale * torch.rand(len(items), 1, dtype=items.dtype, generator=generator)
    away: Tensor = amount * noise * items.norm(dim=1, keepdim=True) / items.shape[1] ** 0.5
    return items + away

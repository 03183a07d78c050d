"""The error of estimated gradients against exact softmax, for every estimator.

Queries and items are unit vectors in clusters, and the cache is fresh, so every estimator has the
exact gradient as its expectation. Its error is then its variance. The error is relative: the mean
of ‖estimate − exact‖² / ‖exact‖², for the gradient in the queries and in the items apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.runner import run_command
from outsize.bench import Benchmark
from outsize.negatives import ESTIMATORS, NegativeCache, cached_softmax

ABOUT = "the error of every gradient estimator of the negative cache, by β and number of draws"
_DIM, _NUM_CLUSTERS = 32, 64


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all estimators."""
    num_items, batch, turns = (256, 16, 4) if quick else (8192, 128, 40)
    rows = []
    for beta in (5.0, 20.0, 40.0):
        queries, items, positives = make_problem(num_items, batch)
        exact = exact_gradients(queries, items, positives, beta)
        for num in (1, 4, 16):
            say(f"β = {beta:g}, {num} draws per query")
            for estimator in ESTIMATORS:
                errors: dict[str, Any] = estimator_errors(
                    queries, items, positives, beta, num, estimator, exact, turns
                )
                rows.append(errors | {"beta": beta, "k": num, "estimator": estimator})
    return {"rows": rows, "items": num_items, "batch": batch, "turns": turns}


def make_problem(num_items: int, batch: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and items in clusters, and the positive of each query."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    centres = normal(_NUM_CLUSTERS, _DIM)
    clusters = torch.randint(_NUM_CLUSTERS, (num_items,), generator=generator)
    items = F.normalize(centres[clusters] + normal(num_items, _DIM), dim=1)
    positives = torch.randperm(num_items, generator=generator)[:batch]
    queries = F.normalize(items[positives] + 0.15 * normal(batch, _DIM), dim=1)
    return queries, items, positives


def exact_gradients(
    queries: Tensor, items: Tensor, positives: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """The gradient of exact softmax cross-entropy in the queries and in the items."""
    leaves = queries.clone().requires_grad_(), items.clone().requires_grad_()
    logits = beta * leaves[0] @ leaves[1].T
    losses = logits.logsumexp(dim=1) - logits.gather(1, positives.unsqueeze(1)).squeeze(1)
    of_queries, of_items = torch.autograd.grad(losses.mean(), leaves)
    return of_queries, of_items


def estimator_errors(
    queries: Tensor,
    items: Tensor,
    positives: Tensor,
    beta: float,
    num: int,
    estimator: str,
    exact: tuple[Tensor, Tensor],
    turns: int,
) -> dict[str, Any]:
    """Relative squared errors in queries and items, and distinct items per draw."""
    cache = NegativeCache(len(items), items.shape[1], precision="float32")
    cache.push(None, items, torch.arange(len(items)))
    leaves = queries.clone().requires_grad_(), items.clone().requires_grad_()
    found = torch.zeros(turns, 2)
    distinct = 0
    for turn in range(turns):
        draw = cache.sample(queries, num, beta, positives, **ESTIMATORS[estimator].draw_options())
        drawn, own = leaves[1][draw.keys], leaves[1][positives]
        loss = cached_softmax(leaves[0], own, drawn, draw, beta, estimator).loss
        for part, (estimate, truth) in enumerate(
            zip(torch.autograd.grad(loss, leaves), exact, strict=True)
        ):
            found[turn, part] = (estimate - truth).square().sum() / truth.square().sum()
        distinct += len(torch.unique(draw.keys))
    mean, spread = found.mean(dim=0), found.std(dim=0) / turns**0.5
    return {
        "of_queries": mean[0].item(),
        "of_items": mean[1].item(),
        "error_of_queries": spread[0].item(),
        "error_of_items": spread[1].item(),
        "distinct": distinct / (turns * draw.keys.numel()),
    }


def table(results: dict[str, Any]) -> str:
    """The results as Markdown: one line per β and k, one column per estimator."""
    lines = [
        f"Mean of ‖estimate − exact‖² / ‖exact‖² over {results['turns']} draws, in the gradient of "
        f"{results['batch']} queries / in that of {results['items']:,} items of width {_DIM}, with "
        "a fresh cache. Standard errors of the means and the share of distinct items are in the "
        "JSON file.\n",
        "| β | k | " + " | ".join(ESTIMATORS) + " |",
        "|--:|--:|" + "--:|" * len(ESTIMATORS),
    ]
    cells = {(row["beta"], row["k"], row["estimator"]): row for row in results["rows"]}
    for beta, num in dict.fromkeys((row["beta"], row["k"]) for row in results["rows"]):
        found = [cells[beta, num, name] for name in ESTIMATORS]
        errors = " | ".join(f"{row['of_queries']:.2g} / {row['of_items']:.2g}" for row in found)
        lines.append(f"| {beta:g} | {num} | {errors} |")
    return "\n".join(lines) + "\n"


BENCHMARK = Benchmark(
    "estimator-error", "python -m benchmarks.negatives.estimator_error", ABOUT, run, table
)

if __name__ == "__main__":
    run_command(BENCHMARK)

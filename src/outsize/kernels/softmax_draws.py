"""Exact draws from a softmax over many items."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor


@dataclass(frozen=True)
class ScoredItems:
    """Items as queries meet them."""

    vectors: Tensor
    scales: Tensor | None
    log_weights: Tensor


@dataclass(frozen=True)
class SoftmaxDraws:
    """Drawn rows, their logits, and the log-partition of each query."""

    rows: Tensor
    logits: Tensor
    log_partition: Tensor


def _logits(queries: Tensor, items: ScoredItems, excluded: Tensor | None) -> Tensor:
    if items.vectors.dtype != torch.float32:
        queries = queries.to(torch.bfloat16).float()
    logits = queries @ items.vectors.float().T
    if items.scales is not None:
        logits = logits * items.scales
    logits = logits + items.log_weights
    if excluded is not None and excluded.shape[1]:
        wide = torch.cat((logits, torch.zeros_like(logits[:, :1])), dim=1)
        places = torch.where(excluded >= 0, excluded, logits.shape[1])
        logits = wide.scatter_(1, places, -torch.inf)[:, :-1]
    return logits


def draw_from_softmax(
    queries: Float32[Tensor, "batch dim"],
    items: ScoredItems,
    num: int,
    generator: torch.Generator,
    excluded: Int64[Tensor, "batch n"] | None = None,
) -> SoftmaxDraws:
    """Draw `num` items for each query."""
    logits = _logits(queries, items, excluded)
    log_partition = logits.logsumexp(dim=1)
    noise = logits.new_empty(*logits.shape[:1], num, logits.shape[1])
    noise.exponential_(generator=generator).log_().neg_()
    rows = (logits.unsqueeze(1) + noise).argmax(dim=2)
    drawn = logits.gather(1, rows)
    is_drawn = torch.isfinite(log_partition).unsqueeze(1)
    return SoftmaxDraws(
        torch.where(is_drawn, rows, -1), torch.where(is_drawn, drawn, -torch.inf), log_partition
    )


def softmax_mean(
    queries: Float32[Tensor, "batch dim"],
    items: ScoredItems,
    log_partition: Float32[Tensor, " batch"],
    excluded: Int64[Tensor, "batch n"] | None = None,
) -> Float32[Tensor, "batch dim"]:
    """The mean item of each query."""
    weights = (_logits(queries, items, excluded) - log_partition.unsqueeze(1)).exp()
    weights = torch.where(torch.isfinite(log_partition).unsqueeze(1), weights, 0.0)
    if items.scales is not None:
        weights = weights * items.scales
    return weights @ items.vectors.float()

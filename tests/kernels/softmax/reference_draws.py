"""The reference for draws from a softmax: all logits, then Gumbel-Max, or one inversion.

It needs several B × N matrices. The other implementations are tested against it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from outsize.kernels.softmax.inversion import pick
from outsize.kernels.softmax.logit_tiles import mask_places
from outsize.kernels.softmax.scored_items import Excluded, ScoredItems, SoftmaxDraws, as_lists


def all_logits(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    excluded: Excluded = None,
) -> Float32[Tensor, "num_queries num_items"]:
    """The logits of all queries and items, −inf if excluded."""
    logits = items.round_queries(queries) @ items.vectors.float().t()
    if items.scales is not None:
        logits = logits * items.scales
    logits = logits + items.log_weights
    lists = as_lists(excluded)
    if lists is not None and items.num_items:
        mask_places(logits, lists.lines(), lists.values)
    return logits


def draw_by_gumbel_max(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    num: int,
    generator: torch.Generator,
    excluded: Excluded = None,
) -> SoftmaxDraws:
    """`draw_from_softmax` for at least one item and finite queries."""
    logits = all_logits(queries, items, excluded)
    # −log of an exponential draw is Gumbel noise with its full tail; −log(−log(u)) would cut it at
    # 16.6 in float32.
    noise = torch.empty(num, *logits.shape, device=logits.device).exponential_(generator=generator)
    rows = (logits - noise.log_()).argmax(dim=2).t()
    drawn = logits.gather(1, rows)
    return SoftmaxDraws(torch.where(drawn > -torch.inf, rows, -1), drawn, logits.logsumexp(dim=1))


def draw_by_inversion(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    uniforms: Float64[Tensor, "num_queries num"],
    excluded: Excluded = None,
) -> SoftmaxDraws:
    """Draws given their uniform numbers, by one cumulative sum over all items in their order."""
    logits = all_logits(queries, items, excluded)
    rows = pick(logits, uniforms)
    drawn = torch.where(rows >= 0, logits.gather(1, rows.clamp_min(0)), -torch.inf)
    return SoftmaxDraws(rows, drawn, logits.logsumexp(dim=1))

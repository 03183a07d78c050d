"""Exact draws from a softmax over many items, in one pass without a B × N matrix in memory.

On the CPU the pass is over chunks that fit the cache, by torch and a kernel that numba compiles; on
CUDA it is a Triton kernel that writes only the log-sum-exps of blocks. Both draw exactly from the
softmax and return its log-partition. The reference is Gumbel-Max, which the negative cache of
Lindgren et al. uses.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float32
from torch import Tensor

from outsize.kernels.available import uses_triton
from outsize.kernels.softmax.chunks import draw_by_chunks
from outsize.kernels.softmax.logit_tiles import (
    logit_tiles,
    multiplies_to_float32,
    multiply_to_float32,
)
from outsize.kernels.softmax.scored_items import (
    Excluded,
    ScoredItems,
    SoftmaxDraws,
    as_lists,
    check_queries,
)
from outsize.kernels.softmax.tile_passes import exponentiate

__all__ = ["ScoredItems", "SoftmaxDraws", "draw_from_softmax", "softmax_mean"]


@torch.no_grad()
def draw_from_softmax(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    num: int,
    generator: torch.Generator,
    excluded: Excluded = None,
    with_mean: bool = False,
    systematic: bool = False,
) -> SoftmaxDraws:
    """Draw items for each query in proportion to `exp(q·e_j + log_weight_j)`.

    Draws are independent and with replacement, unless `systematic`. Nothing has a gradient. A
    non-finite query draws nothing and has a log-partition of NaN; a query without items draws
    nothing and has −inf. The same seed gives the same draws on the same device and sizes.

    Args:
        queries: Already multiplied by the inverse temperature.
        items: The items to draw from.
        num: Draws per query; with 0, only the log-partition is computed.
        generator: A generator on the device of the queries.
        excluded: Rows to exclude per query, unsorted and possibly with repeats, as a matrix or as
            lists. Values that are not a row, such as −1, are padding. To exclude a row for all
            queries, give it a log-weight of −inf instead: exclusions cost time per query.
        with_mean: Also compute the mean of the items' vectors. Without Triton it comes from the
            same pass.
        systematic: Use equally spaced uniform numbers for the draws of a query. Each draw alone has
            the same distribution, but those of a query repeat items as little as possible.
    """
    check_queries(queries, items, num, excluded)
    num_queries = len(queries)
    excluded = as_lists(excluded)
    if num_queries == 0 or items.num_items == 0:
        nothing = queries.new_full((num_queries, num), -torch.inf)
        rows = torch.full_like(nothing, -1, dtype=torch.int64)
        mean = torch.zeros_like(queries) if with_mean else None
        draws = SoftmaxDraws(rows, nothing, queries.new_full((num_queries,), -torch.inf), mean)
    elif uses_triton(queries):
        from outsize.kernels.softmax.triton.draw_launches import draw_by_triton

        draws = draw_by_triton(queries, items, num, generator, excluded, systematic=systematic)
        if not with_mean:
            return draws
        return replace(draws, mean=softmax_mean(queries, items, draws.log_partition, excluded))
    else:
        draws = draw_by_chunks(queries, items, num, generator, excluded, with_mean, systematic)
    # 0 for a finite query, else NaN; otherwise a query of −inf would look like one without items.
    nan_if_non_finite = (items.round_queries(queries) * 0).sum(dim=1)
    log_partition = draws.log_partition + nan_if_non_finite
    is_non_finite = log_partition.isnan().unsqueeze(1)
    return SoftmaxDraws(
        draws.rows.masked_fill(is_non_finite, -1),
        draws.logits.masked_fill(is_non_finite, -torch.inf),
        log_partition,
        None if draws.mean is None else draws.mean + nan_if_non_finite.unsqueeze(1),
    )


@torch.no_grad()
def softmax_mean(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    log_partition: Float32[Tensor, " num_queries"],
    excluded: Excluded = None,
) -> Float32[Tensor, "num_queries dim"]:
    """The mean of the items' (scaled) vectors under each query's softmax, in a separate pass.

    It is zero if the log-partition is −inf, and NaN if it is NaN.

    Args:
        queries: Already multiplied by the inverse temperature.
        items: The items of the softmax.
        log_partition: From `draw_from_softmax` with the same arguments.
        excluded: Rows to exclude per query.
    """
    check_queries(queries, items, 0, excluded)
    excluded = as_lists(excluded)
    is_rounded = items.vectors.dtype != torch.float32
    if is_rounded and uses_triton(queries) and multiplies_to_float32():
        from outsize.kernels.softmax.triton.mean_launches import mean_by_triton

        return mean_by_triton(queries, items, log_partition, excluded)
    mean = torch.zeros_like(queries)
    # exp(logit − inf) is 0, also if the logit is −inf.
    subtracted = log_partition.masked_fill(log_partition == -torch.inf, torch.inf)
    for tile in logit_tiles(queries, items, excluded):
        shares = exponentiate(tile.logits, subtracted[tile.queries])
        if items.scales is not None:
            shares.mul_(items.scales[tile.items])
        mean[tile.queries] += multiply_to_float32(shares, tile.vectors)
    return mean

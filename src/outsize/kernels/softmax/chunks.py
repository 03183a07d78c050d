"""Exact draws from a softmax in one pass over chunks of items, for any device.

The pass stores, per query, one log-sum-exp for each block of items. A draw then descends a tree: it
picks a group of blocks, a block and an item of the block, each in proportion to its mass. This is
an exact draw from the softmax, since P(item) = P(group)·P(block | group)·P(item | block). The
logits of a drawn block are recomputed, not stored. All draws share the one pass.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.inversion import pick, pick_with_rest, systematic_uniforms
from outsize.kernels.softmax.logit_tiles import (
    LogitTile,
    logit_tiles,
    mask_places,
    multiply_to_float32,
)
from outsize.kernels.softmax.scored_items import Excluded, ScoredItems, SoftmaxDraws, as_lists
from outsize.kernels.softmax.tile_passes import BLOCK, BlockMasses
from outsize.kernels.softmax.windows import window_products

_BLOCKS_PER_GROUP = 64
_MAX_GATHERED = 1 << 20


def draw_by_chunks(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    num: int,
    generator: torch.Generator,
    excluded: Excluded = None,
    with_mean: bool = False,
    systematic: bool = False,
) -> SoftmaxDraws:
    """`draw_from_softmax` for at least one query and one item."""
    num_queries = len(queries)
    lists = as_lists(excluded)
    running = _RunningMean(queries) if with_mean else None
    blocks = _block_masses(queries, items, lists, running)
    groups = blocks.logsumexp(dim=2)
    log_partition = groups.logsumexp(dim=1)
    lines = torch.arange(num_queries, device=queries.device).unsqueeze(1).expand(-1, num)
    if systematic:
        group, rest = pick_with_rest(groups, systematic_uniforms(num_queries, num, generator))
        picked_from = blocks[lines, group.clamp(min=0)].flatten(0, 1)
        inside, last = pick_with_rest(picked_from, rest.view(-1, 1))
    else:
        uniforms = torch.rand(
            3, num_queries, num, dtype=torch.float64, device=queries.device, generator=generator
        )
        group, last = pick(groups, uniforms[0]), uniforms[2]
        inside = pick(blocks[lines, group.clamp(min=0)].flatten(0, 1), uniforms[1].view(-1, 1))
    block = torch.where(group < 0, -1, group * _BLOCKS_PER_GROUP + inside.view(num_queries, num))
    rows, logits = _draw_inside_blocks(
        queries, items, lines.flatten(), block.flatten(), last.flatten(), lists
    )
    return SoftmaxDraws(
        rows.view(num_queries, num),
        logits.view(num_queries, num),
        log_partition,
        None if running is None else running.mean(log_partition),
    )


class _RunningMean:
    """Σ exp(logit)·vector over the blocks seen so far, relative to each query's largest logit."""

    def __init__(self, queries: Float32[Tensor, "num_queries dim"]) -> None:
        self._sums = torch.zeros_like(queries)
        self._peaks = queries.new_full((len(queries), 1), torch.finfo(torch.float32).min)

    def add(
        self,
        tile: LogitTile,
        items: ScoredItems,
        weights: Float32[Tensor, "tile_queries parts items"],
        peaks: Float32[Tensor, "tile_queries parts 1"],
    ) -> None:
        """Add the items of a tile.

        Args:
            tile: The queries and items of the tile, with their logits.
            items: All items, with their scales.
            weights: exp(logit − the peak of its part); overwritten.
            peaks: The peak of each part.
        """
        before = self._peaks[tile.queries]
        peak = torch.maximum(before, peaks.amax(dim=1))
        shares = weights.mul_((peaks - peak.unsqueeze(1)).exp_()).flatten(1)
        shares = shares[:, : len(tile.vectors)]
        if items.scales is not None:
            shares.mul_(items.scales[tile.items])
        sums = self._sums[tile.queries].mul_((before - peak).exp_())
        sums.add_(multiply_to_float32(shares, tile.vectors))
        self._peaks[tile.queries] = peak

    def mean(
        self, log_partition: Float32[Tensor, " num_queries"]
    ) -> Float32[Tensor, "num_queries dim"]:
        """The mean; zeros for a query without items."""
        counts = log_partition.unsqueeze(1) > -torch.inf
        scale = (self._peaks - log_partition.unsqueeze(1)).exp_()
        return self._sums * torch.where(counts, scale, 0.0)


def _block_masses(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    excluded: Ragged | None,
    running: _RunningMean | None,
) -> Float32[Tensor, "num_queries groups blocks"]:
    """The log-sum-exp of every block, grouped; blocks past the last item are −inf."""
    num_groups = -(-items.num_items // (BLOCK * _BLOCKS_PER_GROUP))
    masses = BlockMasses(queries, items.num_items, num_groups * _BLOCKS_PER_GROUP)
    for tile in logit_tiles(queries, items, excluded):
        weights, peaks = masses.add(tile)
        if running is not None:
            running.add(tile, items, weights, peaks)
    return masses.finish().view(len(queries), num_groups, _BLOCKS_PER_GROUP)


def _draw_inside_blocks(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    lines: Int64[Tensor, " pairs"],
    blocks: Int64[Tensor, " pairs"],
    uniforms: Float64[Tensor, " pairs"],
    excluded: Ragged | None,
) -> tuple[Int64[Tensor, " pairs"], Float32[Tensor, " pairs"]]:
    """Draw an item and its logit for each pair of a query and a block; −1 and −inf for block −1."""
    queries = items.round_queries(queries)
    width = min(BLOCK, items.num_items)
    # The window of a short last block overlaps the previous block, whose items are masked.
    starts = (blocks.clamp(min=0) * BLOCK).clamp(max=items.num_items - width)
    offsets = torch.arange(width, device=queries.device)
    num_pairs = max(1, _MAX_GATHERED // max(width * queries.shape[1], 1))
    rows, drawn = torch.empty_like(blocks), queries.new_empty(len(blocks))
    excluded_pairs = None
    if excluded is not None and len(blocks):
        # Distinct, so that a block has no more exclusions than items.
        excluded_pairs = torch.unique_consecutive(excluded.pairs(items.num_items))
    for first in range(0, len(blocks), num_pairs):
        pairs = slice(first, first + num_pairs)
        start = starts[pairs]
        logits = window_products(queries, lines[pairs], items.vectors, start, width)
        places = start.unsqueeze(1) + offsets
        if items.scales is not None:
            logits.mul_(items.scales[places])
        logits.add_(items.log_weights[places])
        logits.masked_fill_(places < blocks[pairs].unsqueeze(1) * BLOCK, -torch.inf)
        if excluded_pairs is not None:
            first_pair = lines[pairs] * (items.num_items + 2) + start + 1
            _mask_block(logits, excluded_pairs, first_pair)
        place = pick(logits, uniforms[pairs].unsqueeze(1)).squeeze(1)
        is_drawn = (place >= 0) & (blocks[pairs] >= 0)
        rows[pairs] = torch.where(is_drawn, start + place, -1)
        logit = logits.gather(1, place.clamp(min=0).unsqueeze(1)).squeeze(1)
        drawn[pairs] = torch.where(is_drawn, logit, -torch.inf)
    return rows, drawn


def _mask_block(
    logits: Float32[Tensor, "pairs width"],
    excluded: Int64[Tensor, " n"],
    first: Int64[Tensor, " pairs"],
) -> None:
    """Set the logits of excluded items to −inf, in place.

    Args:
        logits: One line per pair of a query and a block.
        excluded: The numbers of excluded pairs of a query and an item, distinct and ascending.
        first: The number of the first item of each line.
    """
    num, width = logits.shape
    places = torch.searchsorted(excluded, first).unsqueeze(1)
    places = places + torch.arange(width, device=logits.device)
    found = excluded[places.clamp_max(len(excluded) - 1)] - first.unsqueeze(1)
    lines = torch.arange(num, device=logits.device).unsqueeze(1).expand_as(found)
    is_found = places < len(excluded)
    mask_places(logits, lines.flatten(), torch.where(is_found, found, -1).flatten())

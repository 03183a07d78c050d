"""Exact top-k items of each query by logit, without a B × N matrix in memory."""

from __future__ import annotations

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.kernels.softmax.logit_tiles import logit_tiles
from outsize.kernels.softmax.scored_items import Excluded, ScoredItems, as_lists, check_queries

_BLOCK = 16


@torch.no_grad()
def top_items(
    queries: Float32[Tensor, "num_queries dim"],
    items: ScoredItems,
    num: int,
    excluded: Excluded = None,
) -> tuple[Int64[Tensor, "num_queries num"], Float32[Tensor, "num_queries num"]]:
    """The rows of the `num` highest logits of each query, highest first, and those logits.

    Of equal logits, the lower row comes first. If a query has fewer than `num` items, the remaining
    rows are −1 and logits −inf; so are all of a non-finite query. Nothing has a gradient.

    Args:
        queries: Queries, already multiplied by the inverse temperature.
        items: The items to choose from; one with a log-weight of −inf is never chosen.
        num: Items per query.
        excluded: Rows to exclude per query, as a matrix or lists; values that are not a row are
            padding.
    """
    check_queries(queries, items, num, excluded)
    rows = torch.full((len(queries), num), -1, dtype=torch.int64, device=queries.device)
    scores = queries.new_full((len(queries), num), -torch.inf)
    if num == 0 or len(queries) == 0:
        return rows, scores
    for tile in logit_tiles(queries, items, as_lists(excluded)):
        found, places = _highest(tile.logits, num)
        # Items found earlier have lower rows: they come first, and so win ties.
        candidates = torch.cat((scores[tile.queries], found), dim=1)
        their_rows = torch.cat((rows[tile.queries], places + tile.items.start), dim=1)
        scores[tile.queries], order = _first_highest(candidates, num)
        rows[tile.queries] = their_rows.gather(1, order)
    is_non_finite = (items.round_queries(queries) * 0).sum(dim=1, keepdim=True).isnan()
    is_missing = (scores == -torch.inf) | scores.isnan() | is_non_finite
    return rows.masked_fill(is_missing, -1), scores.masked_fill(is_missing, -torch.inf)


def _highest(
    logits: Float32[Tensor, "lines n"], num: int
) -> tuple[Float32[Tensor, "lines k"], Int64[Tensor, "lines k"]]:
    """The `num` highest logits of each line (or all) and their places; lower places win ties.

    They are in the `num` blocks with the highest maxima, where lower blocks win ties: for any other
    block, there are `num` items that are higher, or equal and at a lower place.
    """
    lines, width = logits.shape
    num_blocks = width // _BLOCK
    if width % _BLOCK or num >= num_blocks:
        return _first_highest(logits, min(num, width))
    _, blocks = _first_highest(logits.view(lines, num_blocks, _BLOCK).amax(dim=2), num)
    blocks = blocks.sort(dim=1).values
    inside = torch.arange(_BLOCK, device=logits.device)
    places = (blocks.unsqueeze(2) * _BLOCK + inside).flatten(1)
    found, order = _first_highest(logits.gather(1, places), num)
    return found, places.gather(1, order)


def _first_highest(
    numbers: Float32[Tensor, "lines n"], num: int
) -> tuple[Float32[Tensor, "lines k"], Int64[Tensor, "lines k"]]:
    """The `num` highest numbers of each line and their places; lower places win ties.

    torch.topk breaks ties arbitrarily. Here number and place are packed into one integer, so there
    are no ties.
    """
    bits = (numbers + 0.0).view(torch.int32)  # −0 becomes +0
    # As integers, negative floats are in reverse order unless all bits but the sign are flipped.
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    places = torch.arange(numbers.shape[1], device=numbers.device)
    found = ((ordered << 32) | (0xFFFFFFFF - places)).topk(num, dim=1).values
    chosen = 0xFFFFFFFF - (found & 0xFFFFFFFF)
    return numbers.gather(1, chosen), chosen

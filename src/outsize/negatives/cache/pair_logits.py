"""Logits of all queries of a batch for the items that any of them has drawn."""

from __future__ import annotations

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.draws import SoftmaxDraws
from outsize.negatives.cache.key_index import is_listed
from outsize.negatives.cache.stored_items import StoredItems


def pair_logits(
    scaled: Float32[Tensor, "batch dim"],
    drawn: SoftmaxDraws,
    keys: Int64[Tensor, " draws"],
    items: StoredItems,
    exclude: Ragged | None,
) -> Float32[Tensor, "batch draws"]:
    """The logits that items were drawn by, for every query and the draws of all queries.

    The log-weight of an item follows from its own draw: its logit less β·score. Items that are
    excluded for all queries are never drawn.

    Args:
        scaled: The queries, multiplied by β.
        drawn: Their draws.
        keys: Keys of the drawn items, those of the first query first.
        items: The drawn items in stored precision, in the same order.
        exclude: Keys that are masked per query.
    """
    batch, num = drawn.rows.shape
    queries = scaled if items.vectors.dtype == torch.float32 else scaled.bfloat16().float()
    with torch.autocast(queries.device.type, enabled=False):
        scores = queries @ items.embeddings().T
    own = torch.arange(batch, device=scores.device).repeat_interleave(num)
    logits = drawn.logits.flatten()
    own_scores = scores.gather(0, own.unsqueeze(0)).squeeze(0)
    paired = scores + (logits - own_scores)
    masked = (drawn.rows.flatten() < 0).unsqueeze(0) | ~drawn.log_partition.isfinite().unsqueeze(1)
    if exclude is not None:
        masked = masked | is_listed(exclude, keys)
    return paired.masked_fill(masked, -torch.inf)

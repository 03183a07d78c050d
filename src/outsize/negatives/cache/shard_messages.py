"""Messages between the shards of a negative cache: items to their owners, and drawn items back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.errors import DataError
from outsize.negatives.cache.key_index import NO_KEY
from outsize.negatives.cache.negative_cache import NegativeCache
from outsize.negatives.cache.stored_items import StoredItems
from outsize.ranks.collectives import RankGroup
from outsize.ranks.shard import places_by_owner
from outsize.ranks.tensor_swaps import swap_answers, swap_tensors


def send_to_owners(
    ranks: RankGroup,
    prepare: Callable[[], list[Tensor]],
    empty: Sequence[Tensor],
    operation: str,
    facts: str,
) -> list[Tensor]:
    """Send items to their owners; returns what all ranks sent here, in rank order.

    If any rank cannot prepare its items, all ranks raise before anything is written.

    Args:
        ranks: The ranks that share the cache.
        prepare: Returns the owner of each item, and the tensors to send, one entry per item.
        empty: The same for no items.
        operation: The name of the operation, for errors.
        facts: What must be equal on all ranks.
    """
    refused: Exception | None = None
    try:
        owners, *tensors = prepare()
    except Exception as error:
        refused = error
        owners, *tensors = empty
    places = places_by_owner(owners, ranks.size)
    outgoing = [[values[place] for values in tensors] for place in places]
    received, notes = swap_tensors(ranks, outgoing, [int(refused is not None)], operation, facts)
    if refused is not None:
        raise refused
    for rank, (has_refused,) in enumerate(notes):
        if has_refused:
            raise DataError(f"rank {rank} has items that cannot be stored: nothing was written")
    return [torch.cat(parts) for parts in zip(*received, strict=True)]


def fetch_items(
    ranks: RankGroup, own: NegativeCache, rows: Int64[Tensor, " n"]
) -> tuple[Tensor, Tensor, StoredItems]:
    """Fetch keys, ages and items in the given rows from their owners, each row once.

    Args:
        ranks: The ranks that share the cache.
        own: The shard of this rank.
        rows: Rows of the shared cache, as in `ItemCache.found_at`.
    """
    wanted = rows.clamp_min(0)
    distinct, place = torch.unique(wanted, return_inverse=True)  # sorted, so grouped by owner
    owners, own_rows = distinct // own.num_items, distinct % own.num_items
    sizes = torch.bincount(owners, minlength=ranks.size).tolist()
    requests = [[part] for part in own_rows.split(sizes)]
    received, _ = swap_tensors(ranks, requests, (), "a fetch of drawn items")
    answers: list[list[Tensor]] = []
    for (requested,) in received:
        keys, ages, items = own.found_at(requested)
        answers.append([keys, ages, *items.tensors()])
    found = swap_answers(ranks, answers, sizes)
    keys, ages, *rest = (torch.cat(parts)[place] for parts in zip(*found, strict=True))
    keys, ages = torch.where(rows >= 0, keys, NO_KEY), torch.where(rows >= 0, ages, 0)
    return keys, ages, own.items.at(own.keys[:0]).with_tensors(rest)

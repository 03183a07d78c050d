"""Which rank a row goes to, which rows are sent back, and where they belong in the request.

The compiled passes return what the torch code returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

from outsize.kernels.arrays import array, is_plain
from outsize.kernels.compiled import compiled, is_worthwhile

_LEAST_IDS = 1024
_NONE_KEPT = torch.iinfo(torch.int64).min


def by_owner(
    ids: Int64[Tensor, " n"], num_owners: int, num_ranks: int
) -> tuple[Int64[Tensor, " n"], list[int]]:
    """Places of ids by owner, which is id mod `num_owners`, and ascending for each owner.

    Args:
        ids: Ids of rows, ascending.
        num_owners: Number of ranks that own rows, from rank 0 on.
        num_ranks: Number of ranks.

    Returns:
        The places of all ids, and how many each rank owns.
    """
    if num_ranks == 1:
        return torch.arange(ids.shape[0], device=ids.device), [ids.shape[0]]
    kernels = _kernels(ids.shape[0], ids)
    if kernels is not None:
        order, counts = torch.empty_like(ids), torch.zeros(num_ranks, dtype=torch.int64)
        kernels.by_owner(array(ids.contiguous()), num_owners, array(counts), array(order))
        return order, counts.tolist()
    owners = modulo(ids, num_owners)
    sizes: list[int] = torch.bincount(owners, minlength=num_ranks).tolist()
    return owners.argsort(stable=True), sizes


def modulo(ids: Int64[Tensor, " n"], number: int) -> Int64[Tensor, " n"]:
    """Ids, which are not negative, modulo a number; powers of two take no division."""
    return ids % number if number & (number - 1) else ids & (number - 1)


def quotients(ids: Int64[Tensor, " n"], number: int) -> Int64[Tensor, " n"]:
    """Ids, which are not negative, divided by a number and rounded down."""
    if number == 1:
        return ids
    return ids // number if number & (number - 1) else ids >> (number.bit_length() - 1)


def newer_rows(
    clocks: Int32[Tensor, " rows"],
    places: Int64[Tensor, " n"],
    asked: Int64[Tensor, " n"],
    sizes: Sequence[int],
) -> tuple[Bool[Tensor, " n"], Int64[Tensor, " k"], list[int], list[int | None]]:
    """Compare clocks of several requests with those of rows.

    Args:
        clocks: The clocks of all rows.
        places: The rows that are requested, request by request.
        asked: The clocks that they are requested with.
        sizes: Rows per request.

    Returns:
        Whether the clock of a row is greater than was asked; the places of those rows; their number
        per request; and the maximum of (clock − asked clock) over the others, or `None`.
    """
    kernels = _kernels(places.shape[0], clocks, places, asked)
    if kernels is not None:
        num, k = places.shape[0], len(sizes)
        stale, found = torch.empty(num, dtype=torch.bool), torch.empty_like(places)
        ends = torch.tensor(sizes).cumsum(0)
        sent, behind = (torch.empty(k, dtype=torch.int64) for _ in range(2))
        total = kernels.newer_rows(
            array(clocks.contiguous()), array(places.contiguous()), array(asked.contiguous()),
            array(ends), array(stale), array(found), array(sent), array(behind),
        )  # fmt: skip
        return stale, found[:total], sent.tolist(), _known(behind.tolist())
    ahead = clocks.index_select(0, places).long() - asked
    stale = ahead > 0
    sent_each = [int(flags.sum()) for flags in stale.split(list(sizes))]
    kept = ahead.masked_fill(stale, _NONE_KEPT).split(list(sizes))
    worst = [int(lag.max()) if lag.shape[0] else _NONE_KEPT for lag in kept]
    return stale, places[stale], sent_each, _known(worst)


def in_order_of_request(
    order: Int64[Tensor, " n"], stale: Bool[Tensor, " n"]
) -> tuple[Bool[Tensor, " n"], Int64[Tensor, " k"]]:
    """Replies, which come owner by owner, in the order of the request.

    Args:
        order: The place in the request of each row, owner by owner.
        stale: Whether the row was sent, in the same order.

    Returns:
        Whether each row of the request was sent, and for each row that was sent its line among
        those that were, in the order of the request.
    """
    kernels = _kernels(order.shape[0], order, stale)
    if kernels is not None:
        flags = torch.empty_like(stale)
        lines, starts = torch.empty_like(order), torch.empty_like(order)
        num = kernels.in_order(
            array(order.contiguous()), array(stale.contiguous()), array(flags), array(starts),
            array(lines),
        )  # fmt: skip
        return flags, lines[:num]
    flags = torch.empty_like(stale).index_copy_(0, order, stale)
    return flags, (flags.cumsum(0) - 1).index_select(0, order[stale])


def _known(behind: Sequence[int]) -> list[int | None]:
    return [None if lag == _NONE_KEPT else lag for lag in behind]


def _kernels(num_ids: int, *tensors: Tensor) -> Any:
    if not (is_worthwhile(num_ids, _LEAST_IDS) and is_plain(*tensors)):
        return None
    return compiled("exchange.exchange_numba")

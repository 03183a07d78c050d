"""Gathers the lines of all ranks into one tensor, with gradients."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.kernels.ragged import Ragged
from outsize.ranks.collectives import RankGroup
from outsize.ranks.tensor_swaps import swap_answers, swap_tensors


def gather_lines(values: Tensor, ranks: RankGroup | None) -> Tensor:
    """The lines of every rank, in the order of ranks; their numbers may differ.

    In the backward pass a line gets the sum of its gradients over all ranks. Ranks that average
    their gradients then have the gradient of the mean loss. All ranks must run both passes.
    """
    if ranks is None or ranks.size == 1:
        return values
    gathered: Tensor = _Gather.apply(values, ranks)
    return gathered


def gather_keys(
    keys: Int64[Tensor, " batch"], ranks: RankGroup | None
) -> tuple[Int64[Tensor, " all"], int]:
    """The keys of every rank, in the order of ranks, and the position of this rank's first key."""
    if ranks is None or ranks.size == 1:
        return keys, 0
    parts = _parts(keys, ranks)
    return torch.cat(parts), sum(len(part) for part in parts[: ranks.rank])


def gather_lists(lists: Ragged, ranks: RankGroup | None) -> Ragged:
    """The lists of keys of every rank, in the order of ranks."""
    if ranks is None or ranks.size == 1:
        return lists
    received, _ = swap_tensors(ranks, [[lists.values, lists.sizes()]] * ranks.size)
    return Ragged.stacked([Ragged.from_sizes(values, sizes) for values, sizes in received])


def _parts(values: Tensor, ranks: RankGroup) -> list[Tensor]:
    """The lines of each rank."""
    received, _ = swap_tensors(ranks, [[values]] * ranks.size)
    return [part for (part,) in received]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, ranks: RankGroup) -> Tensor:
        parts = _parts(values, ranks)
        ctx.ranks, ctx.sizes = ranks, [len(part) for part in parts]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        mine = [ctx.sizes[ctx.ranks.rank]] * ctx.ranks.size
        outgoing = [[part] for part in gradient.contiguous().split(ctx.sizes)]
        received = swap_answers(ctx.ranks, outgoing, mine)
        return torch.stack([part for (part,) in received]).sum(dim=0), None

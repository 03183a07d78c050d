"""Choosing the learning rate of a probe by the loss of validation, on a few ids."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.errors import ReclusterError
from outsize.ranks.collectives import broadcast_first, rank
from outsize.ranks.failures import failing_together
from outsize.tables import Probe, ProbeBlock

RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_FIRST = 2  # the rates chosen in recorded runs are around it
_TRIED_EXAMPLES = 1 / 4
_MOST_OF_ONE_ID = 1 / 4


def choose_rate(
    probe: Probe, ids: Mapping[str, Int64[Tensor, " n"]], loss_after: Callable[[ProbeBlock], float]
) -> float:
    """The learning rate that gives the lowest loss of validation.

    The ids are trained for one pass with a rate of 0.03, then with rates above it, or below it, by
    factors of about 3 until the loss rises.

    Args:
        probe: The probe.
        ids: The ids to try rates on, by table.
        loss_after: Trains a block, and returns the loss of validation.
    """
    losses: dict[float, float] = {}

    def loss_of(rate: float) -> float:
        with probe.trial(rate, ids) as block:
            loss = loss_after(block)
        losses[rate] = math.inf if math.isnan(loss) else loss
        return losses[rate]

    best = loss_of(RATES[_FIRST])
    for direction in (1, -1):
        place = _FIRST
        while 0 <= (place := place + direction) < len(RATES) and loss_of(RATES[place]) < best:
            best = losses[RATES[place]]
        if len(losses) > 2:  # a higher rate was better than the first
            break
    return min(losses, key=lambda rate: (losses[rate], rate))


def tried_ids(
    probe: Probe, counts: Mapping[str, Int64[Tensor, " num_rows"]], num_features: int, seed: int
) -> dict[str, Int64[Tensor, " n"]]:
    """Ids to try rates on, by table: together they are in about a quarter of the examples.

    They are drawn from the first block, an equal share of what occurs of each feature, and none of
    them is a large part of it. With many features, more ids would be in nearly every example, and
    to try a rate would take as long as to train a block. Where no table has such ids, a quarter of
    those of the first block. All ranks call it, and get what the first one draws.

    Args:
        probe: The blocks.
        counts: How often each id of each table occurs; needed by the first rank only.
        num_features: Features whose tables are probed.
        seed: Seed of the draw.
    """
    share = 1 - (1 - _TRIED_EXAMPLES) ** (1 / max(1, num_features))
    chosen = {name: torch.zeros_like(probe.block_of(name)) for name in probe.tables}
    with failing_together(ReclusterError):
        for name, found in chosen.items():
            if rank() == 0 and name in counts:
                ids = (probe.block_of(name) == 0).nonzero().flatten().cpu()
                places = ids[_drawn(counts[name].cpu(), ids, share, seed)]
                found[places.to(found.device)] = 1
    broadcast_first(chosen.values())
    if any(bool(found.any()) for found in chosen.values()):
        return {name: found.nonzero().flatten() for name, found in chosen.items()}
    return {name: (probe.block_of(name) == 0).nonzero().flatten()[::4] for name in probe.tables}


def _drawn(
    counts: Int64[Tensor, " num_rows"], ids: Int64[Tensor, " n"], share: float, seed: int
) -> Bool[Tensor, " n"]:
    """Which of the ids are drawn, so that they make up no more than a share of what occurs."""
    limit = share * float(counts.sum())
    order = torch.randperm(ids.numel(), generator=torch.Generator().manual_seed(seed))
    numbers = counts[ids[order]].double()
    numbers[numbers > _MOST_OF_ONE_ID * limit] = math.inf
    is_drawn = torch.zeros(ids.numel(), dtype=torch.bool)
    allowed = numbers.isfinite()
    total = torch.where(allowed, numbers, 0.0).cumsum(0)
    is_drawn[order] = allowed & (total <= limit)
    return is_drawn

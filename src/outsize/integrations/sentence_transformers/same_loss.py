"""A check that all ranks compute the same loss in a step, where a Trainer has several."""

from __future__ import annotations

import torch

from outsize.errors import ConfigError
from outsize.ranks.agreement import swap_headers
from outsize.ranks.collectives import ProcessRanks


def require_same_loss(number: int, device: torch.device) -> None:
    """Raise on all ranks if any has a batch of another loss; all ranks call it.

    Two losses hold caches of the same shape, so that without the check a rank would push its texts
    into the other rank's cache and draw from it.

    Args:
        number: How many losses this process had made before this one. Ranks run one program, so it
            identifies a loss.
        device: Where to create the messages.
    """
    ranks = ProcessRanks()
    lines = [[number]] * ranks.size
    numbers = [line[0] for line in swap_headers(ranks, "a check of items", "", lines, device)]
    if len(set(numbers)) > 1:
        entered = ", ".join(f"rank {rank} loss {which}" for rank, which in enumerate(numbers))
        raise ConfigError(
            f"the ranks have batches of different losses in one step ({entered}): give the Trainer "
            "accelerator_config={'split_batches': True}, which splits each batch over the ranks, "
            "or one loss for all data sets"
        )

"""The gradient norm of a step, the same on all ranks, for clipping."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outsize.ranks.collectives import sum_over_ranks

_norm = torch.nn.utils.get_total_norm


def joint_norm(dense: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
    """The norm of dense and row gradients together, on this rank."""
    return _norm([*dense, *rows])


def norm_over_ranks(
    dense: Sequence[Tensor], rows: Sequence[Tensor], num_workers: int, device: torch.device
) -> Tensor:
    """The norm of dense gradients that ranks share and row gradients that they do not.

    Entered by all ranks. A row that several ranks touch in a step counts as if their gradients
    were at right angles: their mean is known to its owner only.

    Args:
        dense: Averaged over ranks, and so the same on all.
        rows: This rank's own, to be averaged by their owners.
        num_workers: How many ranks.
        device: Where the model is.
    """
    of_rows = sum_over_ranks(_norm(rows).to(device).square()) / num_workers**2
    return (_norm(dense).square() + of_rows).sqrt()


def values_of(gradient: Tensor) -> Tensor:
    """The values of a dense or sparse gradient."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient

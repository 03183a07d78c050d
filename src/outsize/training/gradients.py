"""The gradients of a step: their joint norm over ranks, and clipping."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from outsize.optimizers import RowOptimizer
from outsize.ranks.collectives import sum_over_ranks


def clip_gradients(
    dense: Optimizer,
    rows: RowOptimizer | None,
    limit: float | None,
    num_workers: int,
    device: torch.device,
    over_ranks: bool = False,
) -> Tensor:
    """Scale dense and row gradients down to a joint norm, and return the norm they had.

    With a limit or `over_ranks`, and several workers, it is entered by all ranks, and the norm is
    the same on all. Otherwise it is the norm of this rank's gradients. Fused rows, whose gradients
    no longer exist, are only measured.

    Args:
        dense: The optimizer of the dense weights.
        rows: The optimizer of rows, if they are in a store.
        limit: The largest norm; `None` scales nothing.
        num_workers: Ranks that share rows and train in step.
        device: Where the model is.
        over_ranks: Whether the norm over all ranks is wanted without a limit too.
    """
    of_dense = gradients_of(dense)
    values = [values_of(gradient) for gradient in of_dense]
    if rows is not None and (fused := rows.store.fused) is not None:
        assert limit is None, "clipping refuses fused rows"
        return get_total_norm([*values, fused.squared_norm.sqrt()])
    of_rows = [] if rows is None else gradients_of(rows)
    if num_workers == 1 or (limit is None and not over_ranks):
        norm = get_total_norm([*values, *of_rows])
    else:
        norm = _norm_over_ranks(values, of_rows, num_workers, device)
    if limit is not None:
        scale = torch.clamp(limit / (norm + 1e-6), max=1.0)
        for gradient in (*of_dense, *of_rows):
            gradient.mul_(scale.to(gradient.device))
    return norm


def _norm_over_ranks(
    dense: Sequence[Tensor], rows: Sequence[Tensor], num_workers: int, device: torch.device
) -> Tensor:
    """The norm of dense gradients, equal on all ranks, and of each rank's own row gradients.

    If several ranks update a row in a step, their gradients count as orthogonal: only the row's
    owner knows their mean.
    """
    of_rows = sum_over_ranks(get_total_norm(rows).to(device).square()) / num_workers**2
    return (get_total_norm(dense).square() + of_rows).sqrt()


def gradients_of(optimizer: Optimizer) -> list[Tensor]:
    """All gradients that an optimizer would apply."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [weight.grad for weight in weights if weight.grad is not None]


def values_of(gradient: Tensor) -> Tensor:
    """The values of a dense or sparse gradient."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient

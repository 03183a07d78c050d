"""The error for a non-finite loss or gradient."""

from __future__ import annotations

import torch
from torch import nn

from outsize.errors import NonFiniteError
from outsize.optimizers import RowOptimizer
from outsize.training.gradient_norm import values_of
from outsize.training.loop_state import LoopState


def non_finite_error(
    model: nn.Module, rows: RowOptimizer | None, state: LoopState
) -> NonFiniteError:
    """An error that names the step and the first weights with non-finite gradients.

    Args:
        model: What is trained.
        rows: The optimizer of its rows, if they are in a store.
        state: The progress of the run before the step.
    """
    names = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not torch.isfinite(values_of(parameter.grad)).all()
    ]
    if rows is not None:
        pending = rows.param_groups[0]["params"]
        if any(not torch.isfinite(tensor.grad).all() for tensor in pending):
            names.append("embedding rows")
    where = f"the gradient of {', '.join(names[:3])}" if names else "the loss"
    return NonFiniteError(
        f"step {state.step + 1} (epoch {state.epoch + 1}, batch {state.batch + 1}): {where} is NaN "
        "or infinite; nothing was applied: lower the learning rate, set train.clip_norm, or look "
        "at that batch's inputs"
    )

"""Errors for what is NaN or infinite: a loss or gradient, or a metric."""

from __future__ import annotations

import math

import torch
from torch import nn

from outsize.errors import NonFiniteError
from outsize.optimizers import RowOptimizer
from outsize.training.gradients import gradients_of, values_of
from outsize.training.loop_state import LoopState
from outsize.training.metric_names import Metrics


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
    is_fused = rows is not None and rows.store.fused is not None  # and so has no gradients
    if (
        rows is not None
        and not is_fused
        and any(not torch.isfinite(g).all() for g in gradients_of(rows))
    ):
        names.append("embedding rows")
    where = f"the gradient of {', '.join(names[:3])}" if names else "the loss"
    return NonFiniteError(
        f"step {state.step + 1} (epoch {state.epoch + 1}, batch {state.batch + 1}): {where} is NaN "
        "or infinite; nothing was applied: lower the learning rate, set train.clip_norm, or look "
        "at that batch's inputs"
    )


def require_finite_metrics(metrics: Metrics, split: str, step: int) -> None:
    """Raise a `NonFiniteError` if a metric of a split is NaN or infinite."""
    for name, value in metrics.items():
        if value is not None and not math.isfinite(value):
            raise NonFiniteError(
                f"step {step}: {name} of the {split} split is NaN or infinite, and so is what the "
                "model predicts: lower the learning rate, set train.clip_norm, or look at the "
                "inputs"
            )

"""Resetting the optimizer state of a parameter that was rewritten.

After rows are rewritten, the moments of the old values no longer apply. With its state reset, an
optimizer treats the parameter as a new optimizer would at its first step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError, DataError

# The torch optimizers that keep a state per parameter; newer ones if this torch has them. LBFGS is
# not among them: its state is a history of all parameters together.
_NAMES = (
    "Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD Muon NAdam RAdam RMSprop Rprop SGD "
    "SparseAdam"
)
RESETTABLE = tuple(
    getattr(torch.optim, name) for name in _NAMES.split() if hasattr(torch.optim, name)
)


def require_resettable(optimizer: Optimizer, table: EmbeddingTable, weight: Tensor) -> None:
    """Raise an error if an optimizer does not train `weight`, or its state cannot be reset."""
    if not isinstance(optimizer, RESETTABLE):
        raise ConfigError(
            f"table {table.spec.name!r}: recluster cannot reset the state of "
            f"{type(optimizer).__name__}: recluster without an optimizer and make a new one, "
            f"or train with one of {', '.join(kind.__name__ for kind in RESETTABLE)}"
        )
    group = _group_of(optimizer, weight)
    if group is None:
        raise DataError(
            f"table {table.spec.name!r}: the optimizer given to recluster does not train this "
            "table's parameters: give the one that does"
        )
    if _is_fused_sgd(optimizer, group) and group["momentum"] and group["dampening"]:
        raise ConfigError(
            f"table {table.spec.name!r}: recluster cannot reset the momentum of a fused SGD with "
            "dampening: set fused=False, or dampening=0"
        )


def reset_moments(optimizer: Optimizer, parameter: Tensor) -> None:
    """Reset an optimizer's state for a parameter that was rewritten completely.

    The state is deleted, and the next step initializes it again. In three cases the tensors are
    reset to their initial values instead: Adagrad creates its state in the constructor, a captured
    CUDA graph refers to tensors by address, and a fused SGD needs the momentum of all parameters or
    of none.
    """
    state = optimizer.state.get(parameter)
    group = _group_of(optimizer, parameter)
    if not state or group is None:
        return
    keeps_tensors = isinstance(optimizer, torch.optim.Adagrad) or group.get("capturable")
    if keeps_tensors or _is_fused_sgd(optimizer, group):
        first = _first_values(optimizer, group)
        for name, value in state.items():
            if isinstance(value, Tensor):
                value.fill_(first.get(name, 0.0))
    else:
        del optimizer.state[parameter]


def _first_values(optimizer: Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """The initial values of state tensors that do not start at 0."""
    return {
        "sum": optimizer.defaults.get("initial_accumulator_value", 0.0),  # Adagrad
        "mu_product": 1.0,  # NAdam
        "mu": 1.0,  # ASGD
        "eta": group["lr"],
        "step_size": group["lr"],  # Rprop
    }


def _is_fused_sgd(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    return isinstance(optimizer, torch.optim.SGD) and bool(group["fused"])


def _group_of(optimizer: Optimizer, parameter: Tensor) -> dict[str, Any] | None:
    for group in optimizer.param_groups:
        if any(parameter is other for other in group["params"]):
            return group
    return None

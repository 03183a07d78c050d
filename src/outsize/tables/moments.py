"""What optimizers know of a parameter, and how they forget it.

Rows that are rewritten have nothing to do with the moments of what stood there. An optimizer that
has forgotten them treats the rows as one that was just made would, from its first step on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError, DataError

# Those of torch that keep a state for each parameter; the newer ones where torch has them. LBFGS is
# none: it keeps a history of all parameters together.
_NAMES = (
    "Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD Muon NAdam RAdam RMSprop Rprop SGD "
    "SparseAdam"
)
RESETTABLE = tuple(
    getattr(torch.optim, name) for name in _NAMES.split() if hasattr(torch.optim, name)
)


def require_resettable(optimizer: Optimizer, table: EmbeddingTable, weight: Tensor) -> None:
    """Refuse an optimizer of other parameters, and one that cannot forget one parameter."""
    if not isinstance(optimizer, RESETTABLE):
        raise ConfigError(
            f"table {table.spec.name!r}: recluster cannot make {type(optimizer).__name__} forget "
            "the moments of what it rewrites: recluster without an optimizer and make a new one, "
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
            f"table {table.spec.name!r}: recluster cannot make a fused SGD with dampening forget "
            "the momentum of what it rewrites: set fused=False, or dampening=0"
        )


def reset_moments(optimizer: Optimizer, parameter: Tensor) -> None:
    """Make an optimizer forget what it knows of a parameter that was rewritten whole.

    Its state is dropped, and made anew by the next step as by the first. Some keep their tensors,
    which get their first values: Adagrad makes them with the optimizer, a captured graph knows
    them by address, and a fused SGD wants those of all parameters or of none.
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
    """What tensors of a state hold before the first step, where that is not 0."""
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

"""Counts optimizer steps of a model, to notice those that are not committed."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_counted: weakref.WeakSet[OptimizerSteps] = weakref.WeakSet()
_hooks: list[Any] = []


class OptimizerSteps:
    """How often an optimizer has stepped that holds a weight of the model.

    Args:
        model: The model.

    Attributes:
        num: Steps so far.
    """

    def __init__(self, model: nn.Module) -> None:
        self.num = 0
        self._weights = frozenset(map(id, model.parameters()))
        _counted.add(self)
        if not _hooks:  # one for all models of this process
            _hooks.append(register_optimizer_step_post_hook(_count))

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizerSteps:
        return self

    def count(self, optimizer: Optimizer) -> None:
        """Count a step of an optimizer, if it is one of the model."""
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        self.num += any(id(weight) in self._weights for weight in weights)


def _count(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for steps in list(_counted):
        steps.count(optimizer)

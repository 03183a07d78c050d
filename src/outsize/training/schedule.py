"""Learning-rate schedules: a factor that depends on the step alone, and the rates it scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch.optim import Optimizer

from outsize.bounds import require_between
from outsize.errors import ConfigError


@dataclass(frozen=True)
class ScheduleConfig:
    """How learning rates change over a run, for dense weights and rows.

    Attributes:
        shape: "constant", or "linear" or "cosine" decay from the end of the warm-up to the end.
        warmup_steps: Steps over which the rate rises from 0.
        final: The factor decay ends at.
    """

    shape: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps must be >= 0, but got {self.warmup_steps}")
        require_between(self, 0, 1, "final")

    def factor(self, step: int, total_steps: int) -> float:
        """The factor of the base rates at `step` (0 is the first) of `total_steps`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return 1.0
        done = (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps)
        left = 1.0 - min(1.0, done)
        if self.shape == "cosine":
            left = (1.0 - math.cos(math.pi * left)) / 2.0
        return self.final + (1.0 - self.final) * left


class LearningRates:
    """Multiplies the learning rates that optimizers begin with by a factor.

    Args:
        optimizers: Of dense weights, and of rows if they are in a store.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._base = [[float(g["lr"]) for g in o.param_groups] for o in optimizers]

    def scale(self, factor: float) -> None:
        """Set every learning rate to the one it began with, times a factor."""
        for optimizer, rates in zip(self._optimizers, self._base, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def by_name(self) -> dict[str, float]:
        """Learning rates of dense weights, and of embeddings if they have one of their own."""
        rates = [group["lr"] for o in self._optimizers for group in o.param_groups]
        named = {"learning_rate": rates[0]}
        return named if len(rates) == 1 else {**named, "embedding_learning_rate": rates[-1]}

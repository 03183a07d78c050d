"""The update rules of the row optimizers: how a gradient changes a row and its state.

A rule works on compact tensors (one line per distinct row, in any order), wherever the rows are
stored. Rows that are not passed in do not change: there is no decay.

With staleness, a worker may merge the gradients of several batches into Σg before it pushes them.
Adagrad then needs Σg², not (Σg)². `square` returns what a worker must sum in addition to Σg, and
`step` takes that sum as `squares`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

RowState = Mapping[str, Float[Tensor, "n width"]]


@dataclass(frozen=True)
class UpdateRule(ABC):
    """An update rule with its settings.

    Attributes:
        learning_rate: Step size.
        merges_batches: Whether the rule accepts gradients summed over several batches.
    """

    learning_rate: float
    merges_batches: ClassVar[bool] = True

    def state_widths(self, dim: int) -> dict[str, int]:
        """Name → width of the optimizer state of a row of width `dim`."""
        return {}

    def state_fill(self, name: str) -> float:
        """The initial value of a state."""
        return 0.0

    def square(self, gradients: Float[Tensor, "n dim"]) -> Float[Tensor, "n width"] | None:
        """What must be summed over batches in addition to the gradient; `None` for nothing."""
        return None

    @abstractmethod
    def step(
        self,
        rows: Float[Tensor, "n dim"],
        state: RowState,
        gradients: Float[Tensor, "n dim"],
        squares: Float[Tensor, "n width"] | None = None,
    ) -> None:
        """Apply one update to float32 rows and their state, in place.

        Args:
            rows: Values of the rows to update.
            state: Their state, by the names of `state_widths`.
            gradients: Σg over the occurrences in a batch, or over several batches.
            squares: The sum of `square(g)` over those batches; `None` for a single batch.
        """


@dataclass(frozen=True)
class SGDRule(UpdateRule):
    """row ← row − η·g."""

    def step(  # noqa: D102
        self,
        rows: Float[Tensor, "n dim"],
        state: RowState,
        gradients: Float[Tensor, "n dim"],
        squares: Float[Tensor, "n width"] | None = None,
    ) -> None:
        rows.sub_(gradients, alpha=self.learning_rate)


@dataclass(frozen=True)
class AdagradRule(UpdateRule):
    """s ← s + g², row ← row − η·g / (√s + ε), for each element of the row.

    With `row_wise`, g² is averaged over the row and s is one number: an eighth of the memory of the
    rows at dim 8, less than a hundredth at dim 128.

    Attributes:
        eps: ε.
        initial_sum: s before the first update.
        row_wise: Keep one s per row.
    """

    eps: float = 1e-10
    initial_sum: float = 0.0
    row_wise: bool = False

    def state_widths(self, dim: int) -> dict[str, int]:  # noqa: D102
        return {"sum": 1 if self.row_wise else dim}

    def state_fill(self, name: str) -> float:  # noqa: D102
        return self.initial_sum

    def square(self, gradients: Float[Tensor, "n dim"]) -> Float[Tensor, "n width"]:  # noqa: D102
        squares = gradients.square()
        return squares.mean(dim=1, keepdim=True) if self.row_wise else squares

    def step(  # noqa: D102
        self,
        rows: Float[Tensor, "n dim"],
        state: RowState,
        gradients: Float[Tensor, "n dim"],
        squares: Float[Tensor, "n width"] | None = None,
    ) -> None:
        total = state["sum"].add_(self.square(gradients) if squares is None else squares)
        rows.addcdiv_(gradients, total.sqrt().add_(self.eps), value=-self.learning_rate)


@dataclass(frozen=True)
class AdamRule(UpdateRule):
    """Adam on each row's own sequence of updates.

    The bias correction counts the updates of the row, not the steps of the run: a rare row is
    updated as dense Adam would update a parameter that sees only that row's batches. Moments of
    rows that are not in a batch do not decay.

    Attributes:
        betas: Decay of the first and second moment.
        eps: Added to the root of the second moment.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    merges_batches: ClassVar[bool] = False

    def state_widths(self, dim: int) -> dict[str, int]:  # noqa: D102
        return {"mean": dim, "variance": dim, "steps": 1}

    def step(  # noqa: D102
        self,
        rows: Float[Tensor, "n dim"],
        state: RowState,
        gradients: Float[Tensor, "n dim"],
        squares: Float[Tensor, "n width"] | None = None,
    ) -> None:
        beta_1, beta_2 = self.betas
        steps = state["steps"].add_(1.0)
        mean = state["mean"].lerp_(gradients, 1.0 - beta_1)
        variance = state["variance"].mul_(beta_2)
        variance.addcmul_(gradients, gradients, value=1.0 - beta_2)
        correction_1 = 1.0 - torch.pow(beta_1, steps)
        correction_2 = 1.0 - torch.pow(beta_2, steps)
        denominator = (variance / correction_2).sqrt_().add_(self.eps)
        rows.addcdiv_(mean / correction_1, denominator, value=-self.learning_rate)

"""The update rules of the row optimizers: how a gradient changes a row and its state.

A rule works on compact tensors (one line per distinct row, in any order) and knows nothing of
where rows live. Rows that are not passed in do not change: nothing decays in absence.

`squares` is what makes a rule meaningful under staleness. A worker may merge the gradients of
several batches into Σg before it pushes; Adagrad then needs Σg², not (Σg)². `square` says what a
worker must add up beside Σg, and `step` takes that sum.
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
    """One rule with its settings.

    Attributes:
        learning_rate: Step size.
        merges_batches: Whether the rule has a meaning for a sum over several batches.
    """

    learning_rate: float
    merges_batches: ClassVar[bool] = True

    def state_widths(self, dim: int) -> dict[str, int]:
        """Name → width of the state kept with each row of width `dim`."""
        return {}

    def state_fill(self, name: str) -> float:
        """The value a piece of state starts from."""
        return 0.0

    def square(self, gradients: Float[Tensor, "n dim"]) -> Float[Tensor, "n width"] | None:
        """What is to be summed over batches beside the gradient itself, if anything."""
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
            rows: Values of the touched rows.
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
    """s ← s + g², row ← row − η·g / (√s + ε), for each number of the row.

    With `row_wise` the square is averaged over the row and one number is kept: an eighth of the
    memory of the rows at dim 8, a hundredth at dim 128.

    Attributes:
        eps: ε.
        initial_sum: s before the first update.
        row_wise: Keep one s a row.
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

    The bias correction counts the updates of the row, not the steps of the run, so a rare row is
    treated as dense Adam would treat a parameter that sees only that row's batches. Moments of
    untouched rows do not decay.

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

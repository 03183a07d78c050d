"""The update rules of the row optimizers: how a gradient changes a row and its state.

A rule works on compact tensors (one line per distinct row, in any order), wherever the rows are
stored. Rows that are not passed in do not change: there is no decay.

With staleness, a worker may merge the gradients of several batches into Σg before it pushes them.
Adagrad then needs Σg², not (Σg)². `square` returns what a worker must sum in addition to Σg, and
`step` takes that sum as `squares`.

A rule with `compiled` set runs as a compiled kernel where it can: float32 rows on the CPU. Its
results differ from the torch code by rounding, and are the same bits in a table (`update`) and on
compact tensors (`step`), with any number of threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from outsize.kernels.rows.in_place import Rule, mean_squares, step_in_place, update_in_place
from outsize.kernels.rows.rule_numbers_numba import (
    ADAGRAD,
    ADAM,
    MEAN_SQUARES,
    NO_SQUARES,
    ROW_ADAGRAD,
    SGD,
    SQUARES,
)

RowState = Mapping[str, Float[Tensor, "n width"]]


@dataclass(frozen=True)
class UpdateRule(ABC):
    """An update rule with its settings.

    Attributes:
        learning_rate: Step size.
        compiled: Use a compiled kernel where there is one.
        merges_batches: Whether the rule accepts gradients summed over several batches.
    """

    learning_rate: float
    compiled: bool = field(default=False, kw_only=True, repr=False, compare=False)
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

    def kernel_settings(self) -> Rule | None:
        """The number of this rule (`rule_numbers_numba`), and the settings its kernel takes.

        `None` if it has no kernel. The state is passed in the order of `state_widths`.
        """
        return None

    def kernel_square(self) -> int | None:
        """The number of `square` (`rule_numbers_numba`); `None` if no kernel has its bits."""
        return None

    def update(
        self,
        rows: Float[Tensor, "rows dim"],
        state: Mapping[str, Float[Tensor, "rows _"]],
        clocks: Int32[Tensor, " rows"],
        places: Int64[Tensor, " n"],
        gradients: Float[Tensor, "n dim"],
        ticks: Int64[Tensor, " n"],
        squares: Float[Tensor, "n width"] | None = None,
    ) -> bool:
        """Update rows of a table, their state and clocks in place, if a kernel can.

        Returns false, without a change, if the caller must use `step` on copies of the rows.

        Args:
            rows: All rows of the table.
            state: Their state.
            clocks: Their clocks.
            places: The rows to update, each once.
            gradients: As for `step`.
            ticks: The increments of their clocks.
            squares: As for `step`.
        """
        rule = self.compiled_rule()
        return rule is not None and update_in_place(
            rule, rows, state, clocks, places, gradients, ticks, squares
        )

    def compiled_rule(self) -> Rule | None:
        """`kernel_settings` of a compiled rule; `None` if kernels are not to be used."""
        return self.kernel_settings() if self.compiled else None

    def _step_compiled(
        self, rows: Tensor, state: RowState, gradients: Tensor, squares: Tensor | None
    ) -> bool:
        rule = self.compiled_rule()
        return rule is not None and step_in_place(rule, rows, state, gradients, squares)


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
        if not self._step_compiled(rows, state, gradients, squares):
            rows.sub_(gradients, alpha=self.learning_rate)

    def kernel_settings(self) -> Rule:  # noqa: D102
        return SGD, (self.learning_rate,)

    def kernel_square(self) -> int | None:  # noqa: D102
        return NO_SQUARES


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
        if self.row_wise and self.compiled:
            means = mean_squares(gradients)
            if means is not None:
                return means
        squares = gradients.square()
        return squares.mean(dim=1, keepdim=True) if self.row_wise else squares

    def step(  # noqa: D102
        self,
        rows: Float[Tensor, "n dim"],
        state: RowState,
        gradients: Float[Tensor, "n dim"],
        squares: Float[Tensor, "n width"] | None = None,
    ) -> None:
        if self._step_compiled(rows, state, gradients, squares):
            return
        total = state["sum"].add_(self.square(gradients) if squares is None else squares)
        rows.addcdiv_(gradients, total.sqrt().add_(self.eps), value=-self.learning_rate)

    def kernel_settings(self) -> Rule:  # noqa: D102
        return ROW_ADAGRAD if self.row_wise else ADAGRAD, (self.learning_rate, self.eps)

    def kernel_square(self) -> int | None:  # noqa: D102
        if not self.row_wise:
            return SQUARES
        return MEAN_SQUARES if self.compiled else None


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
        if self._step_compiled(rows, state, gradients, squares):
            return
        beta_1, beta_2 = self.betas
        steps = state["steps"].add_(1.0)
        mean = state["mean"].lerp_(gradients, 1.0 - beta_1)
        variance = state["variance"].mul_(beta_2)
        variance.addcmul_(gradients, gradients, value=1.0 - beta_2)
        correction_1 = 1.0 - torch.pow(beta_1, steps)
        correction_2 = 1.0 - torch.pow(beta_2, steps)
        denominator = (variance / correction_2).sqrt_().add_(self.eps)
        rows.addcdiv_(mean / correction_1, denominator, value=-self.learning_rate)

    def kernel_settings(self) -> Rule:  # noqa: D102
        betas = (s for b in self.betas for s in (b, 1.0 - b))
        return ADAM, (self.learning_rate, self.eps, *betas)

    def kernel_square(self) -> int | None:  # noqa: D102
        return NO_SQUARES

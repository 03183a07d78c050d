"""Optimizers for the rows of a store, with the interface of `torch.optim.Optimizer`.

The parameters of a row optimizer are the row tensors in which backward has left a gradient
(`store.pending`). Clipping, loss scaling, accumulation over several backward passes, skipped
steps and torch's learning-rate schedulers therefore work as they do elsewhere. Two things differ:
`step` uses gradients up, so calling it twice does not apply them twice; and the state lives in the
store, beside the rows, so `state_dict` holds settings only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import RowStore, RowUpdate
from outsize.errors import ConfigError, NonFiniteError
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule, UpdateRule


class RowOptimizer(Optimizer, ABC):
    """Trains the rows of one store.

    Args:
        store: Whose rows.
        learning_rate: Step size; a scheduler may change `param_groups[0]["lr"]`.
        settings: The rule's other settings.
    """

    def __init__(self, store: RowStore, learning_rate: float, **settings: Any) -> None:
        if not learning_rate >= 0:
            raise ConfigError(f"learning_rate must be >= 0, but got {learning_rate}")
        # torch refuses an empty list of parameters; ours fills and empties with every step.
        super().__init__([nn.Parameter(torch.empty(0))], {"lr": learning_rate, **settings})
        self.store = store
        self._num_bad_rows: Tensor | None = None
        self.param_groups[0]["params"] = store.pending.tensors
        store.bind(self.rule())

    @abstractmethod
    def rule(self) -> UpdateRule:
        """The update rule with the current settings."""

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Apply every pending gradient, merged by row, and use it up."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.store.reduce_pending()
        update = self.store.pending.merge()
        if update is not None:
            update = self._refuse_non_finite(update)
        self.store.bind(self.rule())
        self.store.submit(update)
        self.store.forget_pending()
        return loss

    def share_infinities(self) -> None:
        """If any rank has a NaN or infinite row gradient, let all have one; entered by all ranks.

        Row gradients stay on the rank that has computed them, so one rank alone may find them
        infinite, where dense ones are averaged over ranks and infinite on all. Call this after
        backward and before `GradScaler.unscale_` or `step`: then all ranks skip, and their scales
        stay equal. Without a scaler, `step` then refuses the update on all ranks. One short
        message is sent where ranks share rows, and none where each is on its own (`ServedStore`).
        """
        self.store.reduce_pending()
        is_finite = self.store.pending.is_finite()
        if self.store.any_rank(not is_finite) and is_finite:
            self.store.pending.add_infinity(self.store._device())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget pending gradients: a step that was computed and is to be skipped."""
        self.store.forget_pending()

    def state_dict(self) -> dict[str, Any]:
        """The settings; the state is in the store's `state_dict`."""
        settings = {k: v for k, v in self.param_groups[0].items() if k != "params"}
        return {"state": {}, "param_groups": [{**settings, "params": []}]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over settings saved by `state_dict`."""
        saved = state_dict["param_groups"][0]
        for name in self.param_groups[0]:
            if name != "params" and name in saved:
                value = saved[name]
                self.param_groups[0][name] = tuple(value) if isinstance(value, list) else value
        self.store.bind(self.rule())

    def raise_if_non_finite(self) -> None:
        """Report an update refused on CUDA because of NaN or infinity (one synchronisation)."""
        count = 0 if self._num_bad_rows is None else int(self._num_bad_rows)
        self._num_bad_rows = None
        if count:
            raise NonFiniteError(
                f"the gradients of {count} rows are NaN or infinite; that update was not applied: "
                "lower the learning rate, clip gradients, or look at the batch's inputs"
            )

    def _refuse_non_finite(self, update: RowUpdate) -> RowUpdate:
        """Let no NaN reach a row: raise on the CPU; on CUDA, zero the update and remember it."""
        if not update.ids.is_cuda and all(math.isfinite(part.sum()) for part in update.gradients):
            return update  # one pass; a sum that only overflows goes on to the exact count
        bad = torch.cat([~torch.isfinite(part).all(dim=1) for part in update.gradients]).sum()
        known = self._num_bad_rows
        self._num_bad_rows = bad if known is None else known + bad
        if not bad.is_cuda:
            self.raise_if_non_finite()
            return update
        gradients = tuple(torch.where(bad > 0, 0.0, part) for part in update.gradients)
        return replace(update, gradients=gradients)

    def _setting(self, name: str) -> Any:
        return self.param_groups[0][name]


class RowSGD(RowOptimizer):
    """row ← row − η·g.

    Args:
        store: Whose rows.
        learning_rate: η.
    """

    def __init__(self, store: RowStore, learning_rate: float = 0.01) -> None:
        super().__init__(store, learning_rate)

    def rule(self) -> UpdateRule:  # noqa: D102
        return SGDRule(self._setting("lr"))


class RowAdagrad(RowOptimizer):
    """Row-wise Adagrad: one accumulator a row, the mean of its squared gradients.

    The usual choice for click models: 4 bytes of state a row, whatever its width.

    Args:
        store: Whose rows.
        learning_rate: η.
        eps: Added to the root of the accumulator.
        initial_sum: The accumulator before the first update.
    """

    def __init__(
        self,
        store: RowStore,
        learning_rate: float = 0.01,
        eps: float = 1e-8,
        initial_sum: float = 0.0,
    ) -> None:
        super().__init__(store, learning_rate, eps=eps, initial_sum=initial_sum)

    def rule(self) -> UpdateRule:  # noqa: D102
        return AdagradRule(
            self._setting("lr"), self._setting("eps"), self._setting("initial_sum"), row_wise=True
        )


class RowFullAdagrad(RowOptimizer):
    """Adagrad with an accumulator for each number, as `torch.optim.Adagrad` on touched rows.

    Args:
        store: Whose rows.
        learning_rate: η.
        eps: Added to the root of the accumulator.
        initial_sum: The accumulators before the first update.
    """

    def __init__(
        self,
        store: RowStore,
        learning_rate: float = 0.01,
        eps: float = 1e-10,
        initial_sum: float = 0.0,
    ) -> None:
        super().__init__(store, learning_rate, eps=eps, initial_sum=initial_sum)

    def rule(self) -> UpdateRule:  # noqa: D102
        return AdagradRule(self._setting("lr"), self._setting("eps"), self._setting("initial_sum"))


class RowAdam(RowOptimizer):
    """Adam on each row's own sequence of updates; rows not in a batch do not decay.

    The bias correction counts a row's updates, where `torch.optim.SparseAdam` counts the steps
    of the run: a row met for the first time late in training moves by η, not by 3η.

    Args:
        store: Whose rows.
        learning_rate: η.
        betas: Decay of the first and second moment.
        eps: Added to the root of the second moment.
    """

    def __init__(
        self,
        store: RowStore,
        learning_rate: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(store, learning_rate, betas=betas, eps=eps)

    def rule(self) -> UpdateRule:  # noqa: D102
        return AdamRule(self._setting("lr"), self._setting("betas"), self._setting("eps"))


ROW_OPTIMIZERS: dict[str, Callable[..., RowOptimizer]] = {
    "sgd": RowSGD,
    "adagrad": RowAdagrad,
    "full-adagrad": RowFullAdagrad,
    "adam": RowAdam,
}

__all__ = [
    "ROW_OPTIMIZERS",
    "RowAdagrad",
    "RowAdam",
    "RowFullAdagrad",
    "RowOptimizer",
    "RowSGD",
]

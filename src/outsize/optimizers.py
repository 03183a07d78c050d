"""Optimizers for the rows of a store, with the interface of `torch.optim.Optimizer`.

The parameters of a row optimizer are the row tensors that have a gradient after backward
(`store.pending`). Gradient clipping, loss scaling, gradient accumulation, skipped steps and torch's
learning-rate schedulers therefore work as with any torch optimizer. Two things differ: `step`
consumes the gradients, so calling it twice does not apply them twice; and the optimizer state lives
in the store, with the rows, so `state_dict` holds the settings only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import RowStore, RowUpdate
from outsize.contracts.fused import FusedRows, NoGradients
from outsize.errors import ConfigError, NonFiniteError
from outsize.kernels.compiled import is_worthwhile
from outsize.kernels.gather.gather import is_finite
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule, UpdateRule

_LEAST_NUMBERS = 1 << 20  # rows of smaller stores stay in the processor's cache


class RowOptimizer(Optimizer, ABC):
    """Base class of the optimizers that train the rows of one store.

    Args:
        store: The store whose rows are trained.
        learning_rate: Step size; a scheduler may change `param_groups[0]["lr"]`.
        fused: Update rows in the backward pass, with the same result. `step` then only ends the
            step, and whatever needs the gradients of rows is refused: see
            `outsize.contracts.fused`. For rows of a `LocalStore`.
        settings: The other settings of the update rule.
    """

    def __init__(
        self, store: RowStore, learning_rate: float, *, fused: bool = False, **settings: Any
    ) -> None:
        if not learning_rate >= 0:
            raise ConfigError(f"learning_rate must be >= 0, but got {learning_rate}")
        # torch refuses an empty list of parameters; this one is filled and emptied at every step.
        super().__init__([nn.Parameter(torch.empty(0))], {"lr": learning_rate, **settings})
        self.store = store
        self._num_bad_rows: Tensor | None = None
        # A function of the tables only, so that all ranks, and resumed runs, get the same bits.
        size = sum(group.num_rows * group.dim for group in store.layout.groups)
        self._compiled = is_worthwhile(size, _LEAST_NUMBERS)
        self.param_groups[0]["params"] = store.pending.tensors
        store.pending.has_optimizer = True
        self._bind()
        self._fused = self._fuse() if fused else None

    @abstractmethod
    def rule(self) -> UpdateRule:
        """The update rule with the current settings."""

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Apply all pending gradients, merged by row, and clear them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._fused is not None:
            self._fused.finish_step()
            return loss
        self.store.reduce_pending()
        update = self.store.pending.merge()
        if update is not None:
            update = self._refuse_non_finite(update)
        self._bind()
        self.store.submit(update)
        self.store.forget_pending()
        return loss

    def share_infinities(self) -> None:
        """If any rank has a non-finite row gradient, give every rank one; call it on all ranks.

        Dense gradients are averaged over ranks, so they are non-finite on all ranks or none. Row
        gradients stay on the rank that computed them, so they may be non-finite on one rank only.
        Call this after backward and before `GradScaler.unscale_` or `step`: then all ranks skip the
        step, and their scales stay equal. Without a scaler, `step` then refuses the update on all
        ranks. One short message is sent if ranks train in step, none with a `ServedStore`.
        """
        self.store.reduce_pending()
        is_finite = self.store.pending.is_finite()
        if self.store.any_rank(not is_finite) and is_finite:
            self.store.pending.add_infinity(self.store._device())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the pending gradients, as for a step that is skipped."""
        if self._fused is not None:
            self._fused.forget()
        self.store.forget_pending()

    def state_dict(self) -> dict[str, Any]:
        """The settings; the optimizer state is in the store's `state_dict`."""
        settings = {k: v for k, v in self.param_groups[0].items() if k != "params"}
        return {"state": {}, "param_groups": [{**settings, "params": []}]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the settings saved by `state_dict`."""
        saved = state_dict["param_groups"][0]
        for name in self.param_groups[0]:
            if name != "params" and name in saved:
                value = saved[name]
                self.param_groups[0][name] = tuple(value) if isinstance(value, list) else value
        self._bind()

    def raise_if_non_finite(self) -> None:
        """Raise if an update was refused on CUDA because it was non-finite (synchronizes once).

        With `fused`, all updates since were refused as well: rows are those before it.
        """
        if self._fused is not None:
            self._fused.raise_if_non_finite()
        count = 0 if self._num_bad_rows is None else int(self._num_bad_rows)
        self._num_bad_rows = None
        if count:
            raise NonFiniteError(
                f"the gradients of {count} rows are NaN or infinite; that update was not applied: "
                "lower the learning rate, clip gradients, or look at the batch's inputs"
            )

    def refresh_settings(self) -> None:
        """Put the settings where updates captured in a CUDA graph read them; does not synchronize.

        Call it before a replay, after a scheduler changed the learning rate; a backward pass that
        is not replayed does it by itself.
        """
        self._bind()
        if self._fused is not None:
            self._fused.refresh_settings()

    def _refuse_non_finite(self, update: RowUpdate) -> RowUpdate:
        """Keep non-finite updates from rows: raise on the CPU; on CUDA zero and count them."""
        if not update.ids.is_cuda and all(is_finite(part) for part in update.gradients):
            return update
        largest = [torch.linalg.vector_norm(part, torch.inf, dim=1) for part in update.gradients]
        bad = (~torch.cat(largest).isfinite()).sum()
        known = self._num_bad_rows
        self._num_bad_rows = bad if known is None else known + bad
        if not bad.is_cuda:
            self.raise_if_non_finite()
            return update
        gradients = tuple(torch.where(bad > 0, 0.0, part) for part in update.gradients)
        return replace(update, gradients=gradients)

    def _bind(self) -> UpdateRule:
        """Have the store apply updates with the current settings; returns the rule."""
        rule = self.rule()
        if self._compiled and rule.kernel_settings() is not None:
            rule = replace(rule, compiled=True)
        self.store.bind(rule)
        return rule

    def _fuse(self) -> FusedRows:
        store, layout = self.store, self.store.layout
        none = store._no_ids()
        if store.lines_of(0, none, None) is None:
            raise ConfigError(
                f"fused updates are for rows in the memory of one process, not for this "
                f"{type(store).__name__}: use a LocalStore, or set fused=False"
            )

        def update(group: int, ids: Tensor, gradients: Tensor) -> None:
            parts = tuple(
                gradients if i == group else gradients.new_empty(0, other.dim)
                for i, other in enumerate(layout.groups)
            )
            store.submit(RowUpdate(ids, parts, torch.ones_like(ids)))

        self.param_groups[0]["params"] = NoGradients()
        read = (store.lines_of, store.rows_in_place)
        store.fused = FusedRows(*read, self._bind, update, layout.num_rows)
        return store.fused

    def _setting(self, name: str) -> Any:
        return self.param_groups[0][name]


def _rate(learning_rate: float, lr: float | None, default: float) -> float:
    """The learning rate by either of its names."""
    if lr is None:
        return learning_rate
    if learning_rate != default:
        raise ConfigError(
            f"learning_rate={learning_rate} and lr={lr} are the same setting: give one of them"
        )
    return lr


class RowSGD(RowOptimizer):
    """row ← row − η·g.

    Args:
        store: The store whose rows are trained.
        learning_rate: η.
        lr: The same, by the name that torch's optimizers give it.
        fused: Update rows in the backward pass; see `RowOptimizer`.
    """

    def __init__(
        self,
        store: RowStore,
        learning_rate: float = 0.01,
        *,
        lr: float | None = None,
        fused: bool = False,
    ) -> None:
        super().__init__(store, _rate(learning_rate, lr, 0.01), fused=fused)

    def rule(self) -> UpdateRule:  # noqa: D102
        return SGDRule(self._setting("lr"))


class RowAdagrad(RowOptimizer):
    """Row-wise Adagrad: one accumulator per row, the sum of its mean squared gradients.

    The usual choice for click models: 4 bytes of state per row, for rows of any width.

    Args:
        store: The store whose rows are trained.
        learning_rate: η.
        eps: Added to the root of the accumulator.
        initial_sum: The accumulator before the first update.
        lr: The learning rate, by the name that torch's optimizers give it.
        fused: Update rows in the backward pass; see `RowOptimizer`.
    """

    def __init__(
        self,
        store: RowStore,
        learning_rate: float = 0.01,
        eps: float = 1e-8,
        initial_sum: float = 0.0,
        *,
        lr: float | None = None,
        fused: bool = False,
    ) -> None:
        rate = _rate(learning_rate, lr, 0.01)
        super().__init__(store, rate, fused=fused, eps=eps, initial_sum=initial_sum)

    def rule(self) -> UpdateRule:  # noqa: D102
        return AdagradRule(
            self._setting("lr"), self._setting("eps"), self._setting("initial_sum"), row_wise=True
        )


class RowFullAdagrad(RowOptimizer):
    """Adagrad with one accumulator per element: `torch.optim.Adagrad` on the rows of each batch.

    Args:
        store: The store whose rows are trained.
        learning_rate: η.
        eps: Added to the root of the accumulator.
        initial_sum: The accumulators before the first update.
        lr: The learning rate, by the name that torch's optimizers give it.
        fused: Update rows in the backward pass; see `RowOptimizer`.
    """

    def __init__(
        self,
        store: RowStore,
        learning_rate: float = 0.01,
        eps: float = 1e-10,
        initial_sum: float = 0.0,
        *,
        lr: float | None = None,
        fused: bool = False,
    ) -> None:
        rate = _rate(learning_rate, lr, 0.01)
        super().__init__(store, rate, fused=fused, eps=eps, initial_sum=initial_sum)

    def rule(self) -> UpdateRule:  # noqa: D102
        return AdagradRule(self._setting("lr"), self._setting("eps"), self._setting("initial_sum"))


class RowAdam(RowOptimizer):
    """Adam on each row's own sequence of updates; rows that are not in a batch do not decay.

    The bias correction counts a row's updates, where `torch.optim.SparseAdam` counts the steps
    of the run: a row that first occurs late in training moves by η, not by 3η.

    Args:
        store: The store whose rows are trained.
        learning_rate: η.
        betas: Decay of the first and second moment.
        eps: Added to the root of the second moment.
        lr: The learning rate, by the name that torch's optimizers give it.
        fused: Update rows in the backward pass; see `RowOptimizer`.
    """

    def __init__(
        self,
        store: RowStore,
        learning_rate: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        lr: float | None = None,
        fused: bool = False,
    ) -> None:
        rate = _rate(learning_rate, lr, 0.001)
        super().__init__(store, rate, fused=fused, betas=betas, eps=eps)

    def rule(self) -> UpdateRule:  # noqa: D102
        return AdamRule(self._setting("lr"), self._setting("betas"), self._setting("eps"))


ROW_OPTIMIZERS: dict[str, Callable[..., RowOptimizer]] = {
    "sgd": RowSGD,
    "adagrad": RowAdagrad,
    "full-adagrad": RowFullAdagrad,
    "adam": RowAdam,
}

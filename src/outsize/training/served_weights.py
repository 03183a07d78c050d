"""Experimental: dense weights served by the ranks, for asynchronous training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import RowUpdate
from outsize.errors import ConfigError
from outsize.kernels.rows.updates import AdagradRule, SGDRule, UpdateRule
from outsize.ranks.collectives import broadcast_first
from outsize.spec import TableSpec
from outsize.stores import ServedStore

_DIM = 256
_TABLE = "weights"
SERVED_RULES: dict[str, Callable[[float], UpdateRule]] = {"sgd": SGDRule, "adagrad": AdagradRule}


class ServedWeights(Optimizer):
    """An optimizer of weights whose true values are rows of its own `ServedStore`.

    A step goes `zero_grad` (or `pull`) → forward and backward → `step`. `zero_grad` also brings the
    weights as their owners have them now; `step` pushes the gradients, which owners apply when they
    arrive, and so leaves this rank's weights as they are until the next `zero_grad`.

    Created by all ranks together; all start with the first rank's weights.

    Args:
        parameters: The weights, the same on all ranks.
        kind: A key of `SERVED_RULES`, which do as torch's optimizers of these names.
        learning_rate: Step size; a scheduler may change `param_groups[0]["lr"]`.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], kind: str, learning_rate: float) -> None:
        require_served(kind)
        super().__init__(parameters, {"lr": learning_rate})
        self._rule = SERVED_RULES[kind]
        self._weights = list(parameters)
        self._sizes = [weight.numel() for weight in parameters]
        self._ids = torch.arange(-(-sum(self._sizes) // _DIM))
        self.store = ServedStore([TableSpec(_TABLE, len(self._ids), _DIM)])
        with torch.no_grad():
            broadcast_first(self._weights)
            self._set_own("rows", self._as_rows(self._weights))
        self._bind()

    @torch.no_grad()
    def pull(self) -> None:
        """Copy the current weights from their owners."""
        self._fill(self.store.exchange(None, self._ids).rows[0])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard gradients and `pull`."""
        super().zero_grad(set_to_none)
        self.pull()

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Push the gradients and discard them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in self._weights]
        update = RowUpdate(self._ids, (self._as_rows(gradients),), torch.ones_like(self._ids))
        self._bind()
        self.store.submit(update)
        super().zero_grad()
        return loss

    def flush(self) -> None:
        """Apply all updates of all ranks, then `pull`; entered by all ranks."""
        self.store.flush()
        self.pull()

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Settings, and the optimizer state of all weights; call `flush` first."""
        reply = self.store.exchange(None, self._ids, torch.full_like(self._ids, -1))
        settings = {"lr": self.param_groups[0]["lr"], "params": []}
        return {"state": {0: dict(reply.state[0])}, "param_groups": [settings]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned, and this rank's weights; entered by all ranks."""
        self.store.flush()
        self.param_groups[0]["lr"] = state_dict["param_groups"][0]["lr"]
        self._bind()
        self._set_own("rows", self._as_rows(self._weights))
        for name, values in state_dict["state"].get(0, {}).items():
            self._set_own(f"state.{name}", values)
        self.store.flush()

    def _bind(self) -> None:
        self.store.bind(self._rule(self.param_groups[0]["lr"]))

    def _as_rows(self, tensors: Sequence[Tensor]) -> Float[Tensor, "rows dim"]:
        """All values as rows, the last one padded with zeros."""
        rows = torch.zeros(len(self._ids), _DIM)
        flat = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])
        rows.view(-1)[: flat.shape[0]] = flat
        return rows

    def _fill(self, rows: Float[Tensor, "rows dim"]) -> None:
        for weight, values in zip(
            self._weights, rows.view(-1)[: sum(self._sizes)].split(self._sizes), strict=True
        ):
            weight.copy_(values.view(weight.shape))

    def _set_own(self, name: str, values: Float[Tensor, "rows dim"]) -> None:
        """Write this rank's share of some values to its rows."""
        for part in self.store.parts():
            part.tensors[name].copy_(values[part.first :: part.every])


def require_served(kind: str) -> None:
    """Refuse an optimizer that asynchronous training does not support."""
    if kind not in SERVED_RULES:
        raise ConfigError(
            f"asynchronous training (embeddings.store = 'served') supports "
            f"{' and '.join(SERVED_RULES)} for dense weights, but optimizer.kind is {kind!r}"
        )

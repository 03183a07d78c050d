"""Dense optimizers for CUDA, whose step is a few kernels that a CUDA graph can hold.

They compute what torch's do, and their checkpoints are the same. A captured graph repeats its
kernels with the numbers it was captured with, so the learning rates are read from tensors on the
device; `refresh_settings`, which a graph does not hold, writes those that changed into them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, AdamW, Optimizer

_CHOICES = {"foreach": None, "fused": None, "capturable": False}
"""Which of torch's kernels are used, and what torch's own optimizers say by default."""


class RefreshedOptimizer(Optimizer):
    """Base class of optimizers with learning rates on the device.

    `param_groups` has them as numbers, as for any torch optimizer.
    """

    _on_device: list[tuple[float, Tensor]] | None = None

    def refresh_settings(self) -> None:
        """Write changed learning rates to the device, without waiting for it."""
        known = self._on_device or []
        rates = [float(group["lr"]) for group in self.param_groups]
        if not known:
            device = self.param_groups[0]["params"][0].device
            self._on_device = [
                (rate, torch.full((), rate, dtype=torch.float32, device=device)) for rate in rates
            ]
            return
        for i, (rate, (last, tensor)) in enumerate(zip(rates, known, strict=True)):
            if rate != last:
                known[i] = (rate, tensor.fill_(rate))

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update the weights; in a graph, by the rates that `refresh_settings` wrote last."""
        assert closure is None, "a closure would run outside of the graph"
        if not self._is_captured():
            self.refresh_settings()
        assert self._on_device is not None
        rates = [group["lr"] for group in self.param_groups]
        for group, (_, tensor) in zip(self.param_groups, self._on_device, strict=True):
            group["lr"] = tensor
        try:
            self._update()
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate
        return None

    def _update(self) -> None:
        """A step by the learning rates in the groups, which are tensors."""
        super().step()

    def _is_captured(self) -> bool:
        return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

    def state_dict(self) -> dict[str, Any]:
        """The state, as torch's optimizer of this kind has it."""
        state = super().state_dict()
        groups = [
            {name: _CHOICES.get(name, value) for name, value in group.items()}
            for group in state["param_groups"]
        ]
        return {**state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; which kernels are used stays."""
        kept = [{n: g[n] for n in _CHOICES if n in g} for g in self.param_groups]
        groups = zip(state_dict["param_groups"], kept, strict=True)
        super().load_state_dict(
            {**state_dict, "param_groups": [{**group, **own} for group, own in groups]}
        )


class DeviceSGD(RefreshedOptimizer, SGD):
    """SGD in one kernel."""

    def __init__(self, weights: Any, **settings: Any) -> None:
        super().__init__(weights, fused=True, **settings)


class DeviceAdamW(RefreshedOptimizer, AdamW):
    """AdamW in one kernel."""

    def __init__(self, weights: Any, **settings: Any) -> None:
        super().__init__(weights, fused=True, capturable=True, **settings)


class DeviceAdagrad(RefreshedOptimizer, Adagrad):
    """Adagrad with all that changes on the device; torch's reads its step counts on the host."""

    def __init__(self, weights: Any, **settings: Any) -> None:
        super().__init__(weights, **settings)
        self._move_counts()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, with its counts on the device."""
        super().load_state_dict(state_dict)
        self._move_counts()

    def _move_counts(self) -> None:
        for weight, state in self.state.items():
            state["step"] = state["step"].to(weight.device)

    @torch.no_grad()
    def _update(self) -> None:
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            gradients: Any = [weight.grad for weight in weights]
            states = [self.state[weight] for weight in weights]
            if group["weight_decay"]:
                gradients = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
            sums = [state["sum"] for state in states]
            torch._foreach_add_([state["step"] for state in states], 1)
            torch._foreach_addcmul_(sums, gradients, gradients, value=1)
            roots = torch._foreach_sqrt(sums)
            torch._foreach_add_(roots, group["eps"])
            moves: Any = torch._foreach_mul(gradients, group["lr"].neg())
            torch._foreach_addcdiv_(weights, moves, roots)

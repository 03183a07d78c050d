"""Device moves of a module that keep the type of every tensor."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def keeping_types(move: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Wrap a function for `nn.Module._apply` so that it moves tensors but keeps their type."""

    def moved(tensor: Tensor) -> Tensor:
        result = move(tensor)
        return result if result.dtype == tensor.dtype else tensor.to(result.device)

    return moved

"""Moves of a module to another device that leave every type as it is."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def keeping_types(move: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What `nn.Module._apply` does to a tensor, but for a change of its type, as by `.half()`."""

    def moved(tensor: Tensor) -> Tensor:
        result = move(tensor)
        return result if result.dtype == tensor.dtype else tensor.to(result.device)

    return moved

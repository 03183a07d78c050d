"""Work counted in numbers written, which a busy machine does not change."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class CountedNumbers(TorchDispatchMode):
    """Counts the numbers that torch's operations return while the context lasts.

    Attributes:
        total: How many.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        self.total += sum(out.numel() for out in outputs if isinstance(out, Tensor))
        return result


def numbers_written(work: Any) -> int:
    """How many numbers torch's operations return in a call."""
    with torch.no_grad(), CountedNumbers() as counted:
        work()
    return int(counted.total)

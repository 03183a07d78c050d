"""Counts the places where a step on a GPU would make the host wait for a number."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_SIZED_BY_VALUES = {
    "aten::_local_scalar_dense",
    "aten::_unique",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
}


class HostReads:
    """The names of operations that read numbers back while the context lasts.

    On the CPU none of them waits, so that tests without a GPU count what one would cost there.

    Attributes:
        names: One per read, in order.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._modes = (_Operations(self.names), _Lists(self.names))

    def __enter__(self) -> "HostReads":
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Operations(TorchDispatchMode):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = func._schema.name
        has_mask = name in ("aten::index", "aten::index_put", "aten::index_put_") and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in args[1]
        )
        has_no_size = (
            name == "aten::repeat_interleave" and (kwargs or {}).get("output_size") is None
        )
        if name in _SIZED_BY_VALUES or has_mask or has_no_size:
            self._names.append(name)
        return func(*args, **(kwargs or {}))


class _Lists(TorchFunctionMode):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func in (Tensor.tolist, Tensor.numpy):
            self._names.append(func.__name__)
        return func(*args, **(kwargs or {}))

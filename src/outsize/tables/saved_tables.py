"""Snapshots of tables and their moments, to restore them."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from outsize.contracts import EmbeddingTable
from outsize.tables.pointer_table import PointerTable


class SavedTables:
    """Copies of the tensors of tables, and of what an optimizer stores for them.

    Args:
        tables: The tables.
        optimizer: The optimizer that trains them.
    """

    def __init__(self, tables: Iterable[EmbeddingTable], optimizer: Optimizer) -> None:
        self._tables = list(tables)
        self._optimizer = optimizer
        self._values = [
            {name: value.detach().clone() for name, value in _tensors_of(table).items()}
            for table in self._tables
        ]
        self._moments = {
            weight: copy.deepcopy(optimizer.state[weight])
            for table in self._tables
            for weight in table.parameters()
            if weight in optimizer.state
        }

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for table, values in zip(self._tables, self._values, strict=True):
            now = _tensors_of(table)
            for name, value in values.items():
                now[name].copy_(value)
            if isinstance(table, PointerTable):
                table.renew_version()
        for weight, saved in self._moments.items():
            state = self._optimizer.state[weight]
            for name, value in saved.items():
                if isinstance(value, Tensor) and isinstance(state.get(name), Tensor):
                    state[name].copy_(value)  # in place: a CUDA graph refers to it by address
                else:
                    state[name] = value

    @property
    def num_bytes(self) -> int:
        """What the copies take."""
        tensors = [value for values in self._values for value in values.values()]
        for state in self._moments.values():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return sum(tensor.nbytes for tensor in tensors)


def _tensors_of(table: EmbeddingTable) -> dict[str, Tensor]:
    return {**dict(table.named_parameters()), **dict(table.named_buffers())}

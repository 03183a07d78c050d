"""A bounded set of ids."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.kernels.directory.slots import slot_index

_FIRST_SIZE = 256


class RecentIds:
    """The last ids that were added, at most `most`; its memory grows with their number.

    Args:
        most: The most ids to remember; one more replaces the oldest.
        num_ids: Ids are below.
    """

    def __init__(self, most: int, num_ids: int) -> None:
        self._most = most
        self._num_ids = num_ids
        self.clear()

    def __len__(self) -> int:
        """How many ids it remembers."""
        return min(self._num_added, self._held.shape[0])

    def contain(self, ids: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Which of these ids it remembers."""
        return self._index.find(ids, self._held) >= 0

    def add(self, ids: Int64[Tensor, " n"]) -> None:
        """Add ids that it does not remember, each once."""
        ids = ids[-self._most :]
        size = self._held.shape[0]
        is_full = size < self._most and len(self) + ids.shape[0] > size
        if is_full or self._held.device != ids.device:
            self._grow(len(self) + ids.shape[0], ids.device)
            size = self._held.shape[0]
        places = torch.arange(self._num_added, self._num_added + ids.shape[0], device=ids.device)
        places %= size
        oldest = self._held[places]
        self._index.remove(oldest[oldest >= 0], self._held)
        self._held[places] = ids
        self._index.put(ids, places, self._held)
        self._num_added += ids.shape[0]

    def ids(self) -> Int64[Tensor, " n"]:
        """All ids that it remembers, oldest first."""
        num, size = len(self), self._held.shape[0]
        return self._held.roll(-(self._num_added % size) if num == size else 0)[:num].clone()

    def load(self, ids: Int64[Tensor, " n"]) -> None:
        """Remember these ids instead, oldest first."""
        self.clear()
        if ids.shape[0]:
            self.add(ids)

    def clear(self) -> None:
        """Forget all ids."""
        self._num_added = 0
        self._held = torch.full((min(_FIRST_SIZE, self._most),), -1, dtype=torch.int64)
        self._index = slot_index(self._held, self._num_ids)

    def tensors(self) -> list[Tensor]:
        """What it keeps in memory."""
        return [self._held, *self._index.tensors()]

    def _grow(self, num: int, device: torch.device) -> None:
        held = self.ids().to(device)  # it was not full, or it would not grow
        size = min(self._most, max(num, 2 * self._held.shape[0]))
        self._held = torch.full((size,), -1, dtype=torch.int64, device=device)
        self._held[: held.shape[0]] = held
        self._num_added = held.shape[0]
        self._index = slot_index(self._held, self._num_ids)

"""Where an item is, given its key, in a cache whose rows change a few at a time."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

NO_KEY = -1  # keys are >= 0; this one stands for an empty row, or for nothing in a list of keys
_FEWEST_RECENT = 4096


class KeyIndex:
    """The row of each key, found by binary search in two sorted lists.

    The long list is sorted once in a while, the short one whenever keys are added to it; whether
    what they say still holds is seen from the keys themselves, so nothing is ever taken out. With
    n rows in the long list the short one grows to n/16 before both become one: adding a key costs
    O(log n) on average, and looking one up O(log n) always.

    Args:
        keys: The key in each row, `NO_KEY` in empty ones. The owner writes to it, and tells here.
    """

    def __init__(self, keys: Int64[Tensor, " rows"]) -> None:
        self._keys = keys
        self.rebuild()

    def rebuild(self) -> None:
        """Read all keys anew."""
        self._sorted, self._rows = torch.sort(self._keys, stable=True)
        self._recent = self._keys.new_empty(0)
        self._recent_rows = self._keys.new_empty(0)

    def add(self, rows: Int64[Tensor, " n"]) -> None:
        """Take note of rows whose keys were written."""
        if self._recent.shape[0] + rows.shape[0] > max(_FEWEST_RECENT, len(self._keys) // 16):
            self.rebuild()
            return
        keys = torch.cat((self._recent, self._keys[rows]))
        all_rows = torch.cat((self._recent_rows, rows))
        self._recent, order = torch.sort(keys, stable=True)  # of equal keys the newest comes last
        self._recent_rows = all_rows[order]

    def rows_of(self, keys: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """The row of each key, −1 where there is none."""
        found = self._look_up(self._sorted, self._rows, keys)
        newer = self._look_up(self._recent, self._recent_rows, keys)
        return torch.where(newer >= 0, newer, found)

    def _look_up(self, listed: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
        if not listed.shape[0]:
            return torch.full_like(keys, -1)
        place = (torch.searchsorted(listed, keys.contiguous(), right=True) - 1).clamp_min_(0)
        row = rows[place]
        holds = (self._keys[row] == keys) & (keys != NO_KEY)
        return torch.where(holds, row, -1)


def as_lists(keys: Int64[Tensor, "batch ..."]) -> Int64[Tensor, "batch n"]:
    """Keys for each query as a list, also where they come as one for each."""
    return keys.unsqueeze(1) if keys.dim() == 1 else keys.flatten(1)


def last_of_each(values: Int64[Tensor, " n"]) -> Int64[Tensor, " distinct"]:
    """Where each distinct value stands last, in the order of those places."""
    ordered, places = torch.sort(values, stable=True)
    is_last = torch.ones_like(ordered, dtype=torch.bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return places[is_last].sort().values

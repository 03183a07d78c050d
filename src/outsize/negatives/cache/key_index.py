"""Where an item is, given its key, in a cache whose rows change a few at a time."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.kernels.directory.lookup import NO_KEY, SortedKeys, rows_holding
from outsize.kernels.ragged import Ragged

__all__ = ["NO_KEY", "KeyIndex", "as_lists", "is_among", "is_repeated", "last_of_each"]

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
        self._all = SortedKeys(*torch.sort(self._keys, stable=True))
        nothing = self._keys.new_empty(0)
        self._recent = SortedKeys(nothing, nothing)

    def add(self, rows: Int64[Tensor, " n"]) -> None:
        """Take note of rows whose keys were written."""
        if len(self._recent.keys) + len(rows) > max(_FEWEST_RECENT, len(self._keys) // 16):
            self.rebuild()
            return
        keys = torch.cat((self._recent.keys, self._keys[rows]))
        all_rows = torch.cat((self._recent.rows, rows))
        keys, order = torch.sort(keys, stable=True)  # of equal keys the newest comes last
        self._recent = SortedKeys(keys, all_rows[order])

    def rows_of(self, keys: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """The row of each key, −1 where there is none."""
        if 4 * keys.numel() > len(self._keys) and not keys.is_cuda:
            rows = places_by_table(keys, self._keys)
            if rows is not None:
                return rows
        return rows_holding(keys, self._keys, (self._all, self._recent))


def places_by_table(
    keys: Int64[Tensor, "*shape"], among: Int64[Tensor, " n"]
) -> Int64[Tensor, "*shape"] | None:
    """Where each key stands among some, which are distinct but for −1; −1 where it does not.

    Faster than a search where many are looked up; `None` where a table would be far larger than
    both.
    """
    bound = int(among.max()) + 1 if len(among) else 0
    if bound > 4 * (keys.numel() + len(among)):
        return None
    table = torch.full((bound + 1,), NO_KEY)  # the last place is for all other keys
    places = torch.arange(len(among))
    is_key = among >= 0
    table[torch.where(is_key, among, bound)] = torch.where(is_key, places, NO_KEY)
    return table[torch.where(keys >= 0, keys, bound).clamp_max_(bound)]


def as_lists(*parts: Int64[Tensor, "batch ..."] | Ragged | None) -> Ragged:
    """Keys for each query as lists: one each, a matrix, or lists; several parts as one list."""
    lists, *others = [Ragged.of(part) for part in parts if part is not None]
    for other in others:
        lists = lists.concatenate_lists(other)
    return lists


def last_of_each(values: Int64[Tensor, " n"]) -> Int64[Tensor, " distinct"]:
    """Where each distinct value stands last, in the order of those places."""
    ordered, places = torch.sort(values, stable=True)
    is_last = torch.ones_like(ordered, dtype=torch.bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return places[is_last].sort().values


def is_among(keys: Int64[Tensor, "*shape"], others: Int64[Tensor, " n"]) -> Bool[Tensor, "*shape"]:
    """Whether each key is one of the others."""
    if not len(others):
        return torch.zeros_like(keys, dtype=torch.bool)
    ordered = others.sort().values
    place = torch.searchsorted(ordered, keys.contiguous()).clamp_max_(len(others) - 1)
    return ordered[place] == keys


def is_repeated(lists: Int64[Tensor, "batch n"]) -> Bool[Tensor, "batch n"]:
    """Whether a key stands further to the left in its list as well."""
    ordered, places = torch.sort(lists, dim=1, stable=True)
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(repeated).scatter_(1, places, repeated)

"""An index from keys to rows, for a cache whose rows change a few per step."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.kernels.directory.lookup import NO_KEY, SortedKeys, rows_holding
from outsize.kernels.ragged import Ragged

__all__ = [
    "NO_KEY",
    "KeyIndex",
    "as_lists",
    "is_among",
    "is_listed",
    "is_repeated",
    "last_occurrences",
]

_MIN_RECENT = 4096


class KeyIndex:
    """Maps keys to rows by binary search in two sorted lists, a long and a short one.

    New keys go into the short list, which is sorted at every `add`. When it exceeds n/16 of the n
    rows, both are merged by a full sort. Entries are never removed: a look-up checks that the row
    it finds still holds the key. Adding a key costs O(log n) on average, a look-up O(log n).

    Args:
        keys: The key in each row, `NO_KEY` in empty ones. Shared with the owner, who writes to it
            and then calls `add`.
    """

    def __init__(self, keys: Int64[Tensor, " rows"]) -> None:
        self._keys = keys
        self.rebuild()

    def rebuild(self) -> None:
        """Sort all keys again."""
        self._all = SortedKeys(*torch.sort(self._keys, stable=True))
        nothing = self._keys.new_empty(0)
        self._recent = SortedKeys(nothing, nothing)

    def add(self, rows: Int64[Tensor, " n"]) -> None:
        """Index rows whose keys were written."""
        if len(self._recent.keys) + len(rows) > max(_MIN_RECENT, len(self._keys) // 16):
            self.rebuild()
            return
        keys = torch.cat((self._recent.keys, self._keys[rows]))
        all_rows = torch.cat((self._recent.rows, rows))
        keys, order = torch.sort(keys, stable=True)  # the newest of equal keys comes last
        self._recent = SortedKeys(keys, all_rows[order])

    def lists(self) -> tuple[SortedKeys, SortedKeys]:
        """The long and the short list, as `rows_holding` takes them."""
        return self._all, self._recent

    def rows_of(self, keys: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """The row of each key; −1 if no row holds it."""
        if 4 * keys.numel() > len(self._keys) and not keys.is_cuda:
            rows = positions_by_table(keys, self._keys)
            if rows is not None:
                return rows
        return rows_holding(keys, self._keys, self.lists())


def positions_by_table(
    keys: Int64[Tensor, "*shape"], among: Int64[Tensor, " n"]
) -> Int64[Tensor, "*shape"] | None:
    """The position of each key in `among`, by a direct table; −1 if it is not there.

    `among` holds distinct keys, and −1 any number of times. Faster than binary search for many
    keys. Returns `None` if the table would be far larger than both inputs.
    """
    bound = int(among.max()) + 1 if len(among) else 0
    if bound > 4 * (keys.numel() + len(among)):
        return None
    table = torch.full((bound + 1,), NO_KEY)  # the last entry is for all other keys
    places = torch.arange(len(among))
    is_key = among >= 0
    table[torch.where(is_key, among, bound)] = torch.where(is_key, places, NO_KEY)
    return table[torch.where(keys >= 0, keys, bound).clamp_max_(bound)]


def as_lists(*parts: Int64[Tensor, "batch ..."] | Ragged | None) -> Ragged:
    """One list of keys per query, concatenated from vectors, matrices and lists."""
    lists, *others = [Ragged.of(part) for part in parts if part is not None]
    for other in others:
        lists = lists.concatenate_lists(other)
    return lists


def last_occurrences(values: Int64[Tensor, " n"]) -> Int64[Tensor, " distinct"]:
    """The position of the last occurrence of each distinct value, in ascending order."""
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


def is_listed(lists: Ragged, keys: Int64[Tensor, " n"]) -> Bool[Tensor, "lines n"]:
    """Whether key j is in list i; −1 never is."""
    if not len(lists.values) or not len(keys):
        return torch.zeros(lists.num_lines, len(keys), dtype=torch.bool, device=keys.device)
    # Look up each listed key among the keys: cheaper than comparing all pairs.
    distinct, number = torch.unique(keys, return_inverse=True)
    found = None if keys.is_cuda else positions_by_table(lists.values, distinct)
    if found is None:
        found = torch.searchsorted(distinct, lists.values).clamp_max_(len(distinct) - 1)
        found = torch.where(distinct[found] == lists.values, found, -1)
    found = torch.where((found >= 0) & (lists.values >= 0), found, len(distinct))
    listed = torch.zeros(lists.num_lines, len(distinct) + 1, dtype=torch.bool, device=keys.device)
    listed.view(-1)[lists.lines() * (len(distinct) + 1) + found] = True
    listed[:, -1] = False
    return listed[:, number]


def is_repeated(lists: Int64[Tensor, "batch n"]) -> Bool[Tensor, "batch n"]:
    """Whether a key occurs earlier in its list."""
    ordered, places = torch.sort(lists, dim=1, stable=True)
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(repeated).scatter_(1, places, repeated)

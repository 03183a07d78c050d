"""Slots of lowest key on a GPU, found among candidates instead of all slots of the cache.

A list of candidates is drawn up by a look at all slots: those of lowest key, and the bound that the
keys of all others exceed. Keys only grow while a row stays in its slot, so the others exceed the
bound until rows are put into slots that are not listed. So the candidates that are still within the
bound are the lowest of all, in order. They become fewer; then a new list is drawn up, once in
several steps, and a step costs as much as its batch.

Whether enough are left is known on the GPU alone. It is told to the host with the other counts of
the round, and if not, the host chooses again among all slots.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

_LISTED_PER_WANTED = 8
_LAST = torch.iinfo(torch.int64).max


class Candidates:
    """The candidates of one cache; see `EvictionPolicy.choose_ahead`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Draw up a new list when it is next needed: rows or keys changed in other ways."""
        self._listed: Tensor | None = None
        self._bound: Tensor | None = None
        self._num_left = 0

    def note_left(self, num: int) -> None:
        """Record how many candidates were left in the last step."""
        self._num_left = num

    def in_order(
        self,
        keys: Int32[Tensor, " num_slots"],
        held: Int64[Tensor, " num_slots"],
        slots: Int64[Tensor, " n"],
        num: int,
        *,
        among_all: bool,
    ) -> tuple[Int64[Tensor, " k"], Bool[Tensor, " k"], Int64[Tensor, ""] | None]:
        """The `num` slots of lowest key, ties by slot, and which of them may be evicted.

        Those that may not come last. The third result is the number of candidates; `None` if all
        slots were looked at. If it is less than `num`, there may be more that are not candidates.

        Args:
            keys: A key per slot, not negative.
            held: The id in each slot; −1 for empty slots, which are not evicted.
            slots: Slots that are not evicted either; negative for none.
            num: How many; all if there are fewer.
            among_all: Look at all slots.
        """
        num_slots = keys.shape[0]
        is_kept = torch.zeros(num_slots + 1, dtype=torch.bool, device=keys.device)
        # Rows that are not in the cache go to the line that is cut off.
        is_kept.index_fill_(0, torch.where(slots >= 0, slots, num_slots), True)
        if among_all or num_slots <= 2 * _LISTED_PER_WANTED * num:
            order = _in_one_number(keys, torch.arange(num_slots, device=keys.device))
            order.masked_fill_((held < 0) | is_kept[:-1], _LAST)
            lowest, chosen = order.topk(min(num, num_slots), largest=False)
            return chosen, lowest < _LAST, None
        if self._listed is None or self._num_left < 2 * num:
            self._draw_up(keys, held, _LISTED_PER_WANTED * num)
        assert self._listed is not None
        assert self._bound is not None
        listed = self._listed
        order = _in_one_number(keys.index_select(0, listed), listed)
        is_out = (held.index_select(0, listed) < 0) | is_kept.index_select(0, listed)
        order.masked_fill_(is_out | (order > self._bound), _LAST)
        lowest, places = order.topk(min(num, listed.shape[0]), largest=False)
        return listed.index_select(0, places), lowest < _LAST, (order < _LAST).sum()

    def _draw_up(self, keys: Tensor, held: Tensor, num: int) -> None:
        order = _in_one_number(keys, torch.arange(keys.shape[0], device=keys.device))
        order.masked_fill_(held < 0, _LAST)
        lowest, self._listed = order.topk(num, largest=False)
        self._bound = lowest[-1].clone()
        self._num_left = num  # so that the next few steps use it


def _in_one_number(keys: Int32[Tensor, " n"], slots: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    return (keys.long() << 32) | slots

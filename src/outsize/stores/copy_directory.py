"""Which rows have copies in a cache, and in which slots."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from outsize.stores.eviction.policy import EvictionPolicy

# Instead of a slot:
NO_COPY = -1
UNPROFITABLE = -2  # the copy was dropped; not admitted again before the next flush
NEVER_COPIED = -3  # the row is not remote


class CopyDirectory(nn.Module):
    """Maps rows to slots and back.

    Args:
        num_rows: Number of rows that may have a copy.
        num_slots: Maximum number of copies.
        policy: Chooses which rows are admitted and which copies are evicted.
    """

    slot_of: Tensor
    ids: Tensor

    def __init__(self, num_rows: int, num_slots: int, policy: EvictionPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.register_buffer("slot_of", torch.full((num_rows,), NO_COPY, dtype=torch.int32))
        self.register_buffer("ids", torch.full((num_slots,), -1, dtype=torch.int64))

    def find(self, ids: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """The slot of each row; negative if there is no copy."""
        return self.slot_of.index_select(0, ids).long()

    def choose(
        self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]
    ) -> tuple[Bool[Tensor, " m"], Int64[Tensor, " k"], Int64[Tensor, " v"]]:
        """Record that a step reads rows, and choose which of those without a copy get one.

        Args:
            ids: Rows that may have a copy, ascending.
            slots: Their slots, from `find`.

        Returns:
            Whether each row without a copy is admitted, the slots of those that are, and the
            slots among them whose copies must be removed first.
        """
        known = slots != UNPROFITABLE
        self.policy.used(ids[known], slots[known])
        taken = self.ids >= 0
        num_free = taken.shape[0] - int(taken.sum())
        evictable = taken.index_fill(0, slots[slots >= 0], False)
        chosen, victims = self.policy.choose(ids[slots == NO_COPY], num_free, evictable)
        num_new = int(chosen.sum()) - victims.shape[0]
        free = (~taken).nonzero().flatten()[:num_new] if num_new else victims[:0]
        return chosen, torch.cat([free, victims]), victims

    def assign(self, ids: Int64[Tensor, " n"], slots: Int64[Tensor, " n"]) -> None:
        """Give empty slots to rows."""
        self.slot_of[ids] = slots.to(torch.int32)
        self.ids[slots] = ids
        self.policy.admitted(ids, slots)

    def remove(self, slots: Int64[Tensor, " n"], mark: int) -> None:
        """Empty slots; `mark` is what `find` returns for their rows from now on."""
        ids = self.ids.index_select(0, slots)
        self.policy.removed(ids, slots)
        self.slot_of.index_fill_(0, ids, mark)
        self.ids.index_fill_(0, slots, -1)

    def directory(self) -> dict[str, Tensor]:
        """Which rows have copies, and the state of the policy; not the values of the copies."""
        policy = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
        return {"ids": self.ids, **policy}

    def fits_directory(self, saved: Mapping[str, Tensor]) -> bool:
        """Whether a saved directory has the shapes and types of this one, and valid ids."""
        here = self.directory()
        if here.keys() != saved.keys() or any(
            here[n].shape != value.shape or here[n].dtype != value.dtype
            for n, value in saved.items()
        ):
            return False
        held = saved["ids"][saved["ids"] >= 0]
        return bool((held < self.slot_of.shape[0]).all()) and len(held.unique()) == len(held)

    def load_directory(self, saved: Mapping[str, Tensor]) -> None:
        """Load what `directory` returned."""
        self.ids.copy_(saved["ids"])
        self.slot_of.fill_(NO_COPY)
        slots = (self.ids >= 0).nonzero().flatten()
        self.slot_of[self.ids[slots]] = slots.to(torch.int32)
        self.policy.load_state_dict(with_prefix("policy.", saved))


def with_prefix(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a state whose names start with a prefix; the prefix is removed."""
    return {n.removeprefix(prefix): value for n, value in state.items() if n.startswith(prefix)}

"""The same rows on every rank, as in plain data-parallel training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts import RowReply, RowStore, RowUpdate
from outsize.kernels.rows.updates import UpdateRule
from outsize.ranks.agreement import require_same_on_all_ranks
from outsize.ranks.collectives import gather_rows, rank, world_size
from outsize.stores.merging import average_over_workers, empty_update
from outsize.stores.wrapper import StoreWrapper


class ReplicatedStore(StoreWrapper):
    """Wraps a store that every rank holds a replica of, and keeps the replicas equal.

    Reads are local. Gradients are averaged over ranks, as DDP averages dense gradients: every rank
    gathers the gradients of all ranks, merges them in the order of ranks and applies the same
    update. So the replicas stay equal bit for bit. `reduce_pending`, `submit` with an update, `add`
    and `RowOptimizer.step` are therefore collective: all ranks call them, even without data.

    Args:
        inner: This rank's replica. All ranks must build it with the same arguments, and build the
            `ReplicatedStore` together.
    """

    def __init__(self, inner: RowStore) -> None:
        super().__init__(inner)
        require_same_on_all_ranks(self.layout.facts())
        self.register_load_state_dict_pre_hook(_to_inner)
        self._pending_is_reduced = False

    def bind(self, rule: UpdateRule) -> None:  # noqa: D102
        self.inner.bind(rule)
        self.rule = self.inner.rule

    def exchange(  # noqa: D102
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None = None,
    ) -> RowReply:
        if update is not None:
            update = self._average(update)
        return self.inner.exchange(update, ids, clocks)

    def preview(  # noqa: D102
        self, update: RowUpdate | None, ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        return self.inner.preview(None if update is None else self._average(update), ids)

    def saves_parts(self) -> bool:
        """Only the first rank saves: the other replicas are equal."""
        return rank() == 0

    def reduce_pending(self) -> None:
        """Average pending gradients over the ranks, once."""
        if not self._pending_is_reduced:
            update = self._average(
                self.pending.merge() or empty_update(self.layout, self._device())
            )
            self.pending.replace(update)
            self._pending_is_reduced = True

    def submit(self, update: RowUpdate | None) -> None:
        """Average an update over ranks, unless `reduce_pending` has done so, and apply it."""
        if not self._pending_is_reduced:
            update = self._average(update or empty_update(self.layout, self._device()))
        self._pending_is_reduced = False
        self.inner.submit(update)

    def forget_pending(self) -> None:  # noqa: D102
        super().forget_pending()
        self._pending_is_reduced = False

    def state_dict(  # type: ignore[override]
        self, *args: Any, prefix: str = "", **kwargs: Any
    ) -> dict[str, Any]:
        """The state of the replica, under the names it has without replication."""
        state: dict[str, Any] = self.inner.state_dict(*args, prefix=prefix, **kwargs)
        return state

    def _average(self, update: RowUpdate) -> RowUpdate:
        """The mean update over ranks; a rank that does not push a row counts as zero."""
        if world_size() == 1:
            return update
        gradients = zip(*(gather_rows(part.float()) for part in update.gradients), strict=True)
        updates = [
            RowUpdate(ids, parts, torch.ones_like(ids))
            for ids, parts in zip(gather_rows(update.ids), gradients, strict=True)
        ]
        mean = average_over_workers(updates, world_size(), self.layout, None)
        return replace(mean, ticks=torch.ones_like(mean.ids))


def _to_inner(module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    """On loading, map the names that `state_dict` writes to those of the replica."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[f"{prefix}inner.{name.removeprefix(prefix)}"] = state_dict.pop(name)

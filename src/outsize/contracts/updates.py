"""Gradients between the backward pass and the store.

A training read returns rows as leaf tensors. A leaf becomes *pending* when backward writes its
gradient. Pending leaves are the parameters of a row optimizer, so clipping and loss scaling apply
to them; `merge` turns them into one update. A leaf without a gradient is freed with its graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts.layout import RowLayout
from outsize.contracts.messages import RowReply, RowUpdate
from outsize.kernels.rows.rounding import is_half_precision, round_at_random, rounding_keys
from outsize.kernels.rows.updates import UpdateRule

_MOST_WITHOUT_OPTIMIZER, _MOST_WITH_OPTIMIZER = 8, 1024


class PendingGradients:
    """The leaves of one store that hold a gradient.

    Attributes:
        tensors: These leaves, oldest first. It is always the same list object, which an optimizer
            can share.
        has_optimizer: Whether a row optimizer was made for the store.
    """

    def __init__(self, layout: RowLayout) -> None:
        self.tensors: list[Tensor] = []
        self._ids: list[Int64[Tensor, " n"]] = []
        self._groups: list[int] = []
        self._layout = layout
        self._has_warned = False
        self.has_optimizer = False

    def leaf(
        self, rows: Float[Tensor, "n dim"], ids: Int64[Tensor, " n"], group: int
    ) -> Float[Tensor, "n dim"]:
        """Make a float32 leaf of rows; it becomes pending when it gets a gradient."""
        leaf = rows.detach().to(torch.float32).requires_grad_()

        def note(tensor: Tensor) -> None:
            if not any(tensor is known for known in self.tensors):
                self._add(tensor, ids, group)
                self._warn_if_unused()

        leaf.register_post_accumulate_grad_hook(note)
        return leaf

    def _add(self, leaf: Tensor, ids: Int64[Tensor, " n"], group: int) -> None:
        self.tensors.append(leaf)
        self._ids.append(ids)
        self._groups.append(group)

    def _warn_if_unused(self) -> None:
        """Warn once if gradients pile up that nothing applies."""
        most = _MOST_WITH_OPTIMIZER if self.has_optimizer else _MOST_WITHOUT_OPTIMIZER
        if self._has_warned or len(self.tensors) <= most:
            return
        self._has_warned = True
        names = ", ".join(spec.name for spec in self._layout.specs[:3])
        fact = f"rows of a store ({names}) got gradients in {len(self.tensors):,} backward passes"
        what = "no optimizer trains them: make one, such as outsize.RowAdagrad(store)"
        if self.has_optimizer:
            what = "their optimizer has not stepped: call its step(), or zero_grad() to drop them"
        warnings.warn(f"{fact}, and {what}", stacklevel=2)

    def clear(self) -> None:
        """Drop all pending gradients."""
        for tensor in self.tensors:
            tensor.grad = None
        self.tensors.clear()
        self._ids.clear()
        self._groups.clear()

    def replace(self, update: RowUpdate) -> None:
        """Replace all pending gradients by merged ones."""
        self.clear()
        runs = self._layout.split(update.ids)
        for group, (ids, gradient) in enumerate(zip(runs, update.gradients, strict=True)):
            leaf = torch.empty_like(gradient, requires_grad=True)  # only its gradient matters
            leaf.grad = gradient
            self._add(leaf, ids, group)

    def is_finite(self) -> bool:
        """Whether no gradient holds NaN or infinity."""
        return all(bool(torch.isfinite(_gradient(leaf)).all()) for leaf in self.tensors)

    def add_infinity(self, device: torch.device) -> None:
        """Add an infinite gradient for one row, so that no step applies any gradient."""
        leaf = torch.zeros(1, self._layout.groups[0].dim, device=device, requires_grad=True)
        leaf.grad = torch.full_like(leaf, torch.inf)
        self._add(leaf, torch.zeros(1, dtype=torch.int64, device=device), 0)

    def merge(self) -> RowUpdate | None:
        """Merge all pending gradients into one update with one sum and one tick per row."""
        if not self.tensors:
            return None
        ids: list[Tensor] = []
        gradients: list[Tensor] = []
        for index, group in enumerate(self._layout.groups):
            members = [i for i, owner in enumerate(self._groups) if owner == index]
            group_ids = [self._ids[i] for i in members]
            group_gradients = [_gradient(self.tensors[i]) for i in members]
            if len(members) > 1:
                unique, inverse = torch.unique(torch.cat(group_ids), return_inverse=True)
                total = group_gradients[0].new_zeros(unique.shape[0], group.dim)
                total.index_add_(0, inverse, torch.cat(group_gradients))
                group_ids, group_gradients = [unique], [total]
            elif not members:
                empty = self.tensors[0].new_empty(0, group.dim)
                group_ids, group_gradients = [empty.new_empty(0, dtype=torch.int64)], [empty]
            ids += group_ids
            gradients += group_gradients
        # The very tensor of a single read: a cache then knows where its rows are.
        all_ids = ids[0] if len(ids) == 1 else torch.cat(ids)
        return RowUpdate(all_ids, tuple(gradients), torch.ones_like(all_ids))


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def stepped_rows(
    rule: UpdateRule,
    rows: Float[Tensor, "n dim"],
    state: dict[str, Float[Tensor, "n _"]],
    gradients: Float[Tensor, "n dim"],
    squares: Float[Tensor, "n _"] | None,
    keys: Callable[[], Int64[Tensor, " n"]],
) -> Float[Tensor, "n dim"]:
    """Rows after a step of a rule, in their own type; `rows` and `state` may change in place.

    `keys` returns the `rounding_keys` of the rows; it is called for half-precision rows only.
    """
    values = rows.float()
    rule.step(values, state, gradients.float(), squares)
    if is_half_precision(rows.dtype):
        return round_at_random(values, rows.dtype, keys())
    return values.to(rows.dtype)


def rows_after(
    update: RowUpdate,
    ids: Int64[Tensor, " n"],
    reply: RowReply,
    layout: RowLayout,
    rule: UpdateRule,
    seed: int,
) -> tuple[Float[Tensor, "_ _"], ...]:
    """An owner's rows after an update, bit for bit; the reply is not changed.

    The reply is the owner's for all of `ids` (as for `exchange`), with state. The update may have
    other rows, too.
    """
    update = update.take(torch.isin(update.ids, ids).nonzero().flatten())
    places = torch.searchsorted(ids, update.ids)
    clocks = reply.clocks.index_select(0, places) + update.ticks
    sizes, start, first = layout.group_sizes(update.ids), 0, 0
    found: list[Tensor] = []
    for group, (rows, size) in enumerate(zip(reply.rows, sizes, strict=True)):
        own = slice(first, first + size)
        lines = places[own] - start
        state = {name: part.index_select(0, lines) for name, part in reply.state[group].items()}
        squares = None if update.squares is None else update.squares[group]
        keys = partial(rounding_keys, seed, update.ids[own], clocks[own], update.ticks[own])
        values = stepped_rows(
            rule, rows.index_select(0, lines), state, update.gradients[group], squares, keys
        )
        found.append(rows.index_copy(0, lines, values))
        start, first = start + rows.shape[0], first + size
    return tuple(found)

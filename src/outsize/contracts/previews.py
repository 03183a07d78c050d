"""Rows as they would be after an update that is not applied."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts.layout import RowLayout
from outsize.contracts.messages import RowReply, RowUpdate
from outsize.kernels.rows.rounding import is_half_precision, round_at_random, rounding_keys
from outsize.kernels.rows.updates import UpdateRule


def rows_after(
    update: RowUpdate,
    ids: Int64[Tensor, " n"],
    reply: RowReply,
    layout: RowLayout,
    rule: UpdateRule,
    seed: int,
) -> tuple[Float[Tensor, "_ _"], ...]:
    """What an owner's rows become with an update, bit for bit; the reply stays as it is.

    Args:
        update: What the owner would apply; may have rows that were not asked for.
        ids: Store ids, ascending, each once.
        reply: The owner's answer for all of them, with state.
        layout: Of the store.
        rule: How the owner applies updates.
        seed: The store's.
    """
    update = update.take(torch.isin(update.ids, ids).nonzero().flatten())
    places = torch.searchsorted(ids, update.ids)
    clocks = reply.clocks.index_select(0, places) + update.ticks
    sizes, start, first = layout.group_sizes(update.ids), 0, 0
    found: list[Tensor] = []
    for group, (rows, size) in enumerate(zip(reply.rows, sizes, strict=True)):
        own = slice(first, first + size)
        lines = places[own] - start
        values = rows.index_select(0, lines).float()
        state = {name: part.index_select(0, lines) for name, part in reply.state[group].items()}
        squares = None if update.squares is None else update.squares[group]
        rule.step(values, state, update.gradients[group].float(), squares)
        if is_half_precision(rows.dtype):
            keys = rounding_keys(seed, update.ids[own], clocks[own], update.ticks[own])
            values = round_at_random(values, rows.dtype, keys)
        found.append(rows.index_copy(0, lines, values.to(rows.dtype)))
        start, first = start + rows.shape[0], first + size
    return tuple(found)

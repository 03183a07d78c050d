"""Replies of owners: how they are made, and how those of several owners are joined."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from outsize.contracts import RowLayout, RowReply
from outsize.contracts.messages import take_lines


def join_replies(
    replies: Sequence[RowReply], requested: Sequence[Int64[Tensor, " _"]], layout: RowLayout
) -> RowReply:
    """One reply for all ids, in ascending order.

    `replies` has one reply per owner, all with clocks or all without; `requested` has the ids that
    were requested from each, ascending.
    """
    if len(replies) == 1:
        return replies[0]
    stale: Bool[Tensor, " n"] = torch.cat([reply.stale for reply in replies])
    sent = [ids[reply.stale] for ids, reply in zip(requested, replies, strict=True)]
    by_group = zip(*(layout.split(ids) for ids in sent), strict=True)
    orders = [torch.cat(runs).argsort() for runs in by_group]
    rows = tuple(
        torch.cat([reply.rows[group] for reply in replies]).index_select(0, order)
        for group, order in enumerate(orders)
    )
    # Without clocks there is no state, and so nothing to join.
    state = tuple(
        {name: torch.cat([reply.state[group][name] for reply in replies])[order] for name in names}
        for group, (names, order) in enumerate(zip(replies[0].state, orders, strict=False))
    )
    clocks = torch.cat([reply.clocks for reply in replies])[torch.cat(sent).argsort()]
    behind = [reply.behind for reply in replies if reply.behind is not None]
    in_order = stale[torch.cat(list(requested)).argsort()]
    return RowReply(in_order, rows, clocks, state, max(behind, default=None))


def reply_if_newer(
    clocks: Int64[Tensor, " n"] | None,
    rows: tuple[Float[Tensor, "_ _"], ...],
    state: tuple[dict[str, Float[Tensor, "_ _"]], ...],
    current: Int64[Tensor, " n"],
) -> RowReply:
    """The reply to a request with these clocks, given the current rows."""
    if clocks is None:
        return RowReply(torch.ones_like(current, dtype=torch.bool), rows, current)
    stale = current > clocks
    index = stale.nonzero().flatten()
    newer: tuple[dict[str, Tensor], ...] = tuple({} for _ in state)
    for name in state[0]:  # the rule's, so the same for all groups
        for lines, taken in zip(
            newer, take_lines(tuple(p[name] for p in state), index), strict=True
        ):
            lines[name] = taken
    behind = None if bool(stale.all()) else int((current - clocks)[~stale].max())
    return RowReply(stale, take_lines(rows, index), current[index], newer, behind)

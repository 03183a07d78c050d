"""Replies of owners: how they are made, and how those of several owners are joined."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts import RowReply
from outsize.contracts.messages import take_lines
from outsize.kernels.exchange.routes import in_order_of_request
from outsize.kernels.exchange.sums import put_lines
from outsize.stores.packing import RowRequest


def join_replies(replies: Sequence[RowReply], requests: Sequence[RowRequest]) -> RowReply:
    """One reply for all ids, in ascending order.

    `replies` has one reply per owner, all with clocks or all without; `requests` has what was
    requested from each, with its places.
    """
    if len(replies) == 1:
        return replies[0]
    places = [request.places for request in requests if request.places is not None]
    stale, lines = in_order_of_request(torch.cat(places), torch.cat([r.stale for r in replies]))
    by_owner = lines.split([reply.clocks.shape[0] for reply in replies])
    clocks = _joined([reply.clocks for reply in replies], by_owner)
    rows: list[Tensor] = []
    state: list[dict[str, Tensor]] = []
    first = 0
    taken = [0] * len(replies)
    for group in range(len(replies[0].rows)):
        own: list[Tensor] = []
        for owner, reply in enumerate(replies):
            num = reply.rows[group].shape[0]
            own.append(by_owner[owner][taken[owner] : taken[owner] + num] - first)
            taken[owner] += num
        rows.append(_joined([reply.rows[group] for reply in replies], own))
        first += rows[-1].shape[0]
        if replies[0].state:  # without clocks there is none
            names = replies[0].state[group]
            state.append({n: _joined([r.state[group][n] for r in replies], own) for n in names})
    behind = [reply.behind for reply in replies if reply.behind is not None]
    return RowReply(stale, tuple(rows), clocks, tuple(state), max(behind, default=None))


def _joined(parts: Sequence[Tensor], lines: Sequence[Int64[Tensor, " _"]]) -> Tensor:
    """Lines of all parts, put where they belong."""
    num = sum(part.shape[0] for part in parts)
    joined = parts[0].new_empty(num, *parts[0].shape[1:])
    for part, place in zip(parts, lines, strict=True):
        put_lines(joined, place, part)
    return joined


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

"""Replies of owners: made from rows, and those of several owners joined into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from outsize.contracts import RowLayout, RowReply, RowStore, RowUpdate
from outsize.contracts.messages import take_lines
from outsize.errors import ConfigError


def join_replies(
    replies: Sequence[RowReply], asked: Sequence[Int64[Tensor, " _"]], layout: RowLayout
) -> RowReply:
    """One reply for all ids, in ascending order.

    Args:
        replies: One from each owner, all asked with clocks or all without.
        asked: The ids each was asked for, ascending.
        layout: Of the store.
    """
    stale: Bool[Tensor, " n"] = torch.cat([reply.stale for reply in replies])
    following = [ids[reply.stale] for ids, reply in zip(asked, replies, strict=True)]
    by_group = zip(*(layout.split(ids) for ids in following), strict=True)
    orders = [torch.cat(runs).argsort() for runs in by_group]
    rows = tuple(
        torch.cat([reply.rows[group] for reply in replies]).index_select(0, order)
        for group, order in enumerate(orders)
    )
    state: tuple[dict[str, Tensor], ...] = ()
    if replies[0].state:
        state = tuple(
            {
                name: torch.cat([reply.state[group][name] for reply in replies]).index_select(
                    0, order
                )
                for name in replies[0].state[group]
            }
            for group, order in enumerate(orders)
        )
    clocks = torch.cat([reply.clocks for reply in replies])[torch.cat(following).argsort()]
    behind = [reply.behind for reply in replies if reply.behind is not None]
    in_order = stale[torch.cat(list(asked)).argsort()]
    return RowReply(in_order, rows, clocks, state, max(behind, default=None))


def newer_than(
    clocks: Int64[Tensor, " n"] | None,
    rows: tuple[Float[Tensor, "_ _"], ...],
    state: tuple[dict[str, Float[Tensor, "_ _"]], ...],
    current: Int64[Tensor, " n"],
) -> RowReply:
    """What someone who holds rows with these clocks is told about rows as they are here now."""
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


def previewed_reply(
    owner: RowStore, update: RowUpdate | None, ids: Int64[Tensor, " n"]
) -> RowReply:
    """An owner's answer to an evaluation read: rows with an update that is not applied."""
    everything = torch.ones_like(ids, dtype=torch.bool)
    return RowReply(everything, owner.preview(update, ids), torch.zeros_like(ids))


def refuse_rows_of_others(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any
) -> None:
    """Refuse to load a `state_dict` where ranks share rows: all would get those of one."""
    assert isinstance(module, RowStore)
    if module.num_workers > 1 and any(name.startswith(prefix) for name in state_dict):
        raise ConfigError(
            f"rows that {module.num_workers} ranks share are loaded by `outsize.load_rows`, each "
            "rank its own, but a state_dict holds those of one rank"
        )

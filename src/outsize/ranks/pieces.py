"""Large messages between machines, in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_PIECE_BYTES = 1 << 18  # larger messages go in pieces
_ANSWER = 1 << 30  # the tag of what says that all pieces are there
_MOST_WAIT = timedelta(minutes=1)  # for the end of sending what has arrived


def swap_in_pieces(
    received: Mapping[int, Tensor],
    sent: Mapping[int, Tensor],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Send large messages to some ranks, and receive some, over gloo.

    Gloo's `all_to_all` sends a large message before it receives one, so that a link carries one of
    them at a time. In pieces, both go on together. On one machine this only takes longer.

    Args:
        received: Rank → a flat tensor of the size of what it sends here.
        sent: Rank → a flat tensor.
        group: The ranks; `None` for the default group.
    """
    own, size = dist.get_rank(group), dist.get_world_size(group)
    at = range(size) if group is None else dist.get_process_group_ranks(group)
    # If a rank is lost, gloo ends what has not begun, but never a piece that is under way. So one
    # byte more is received, before any piece is waited for; and what was sent is waited for when
    # the other rank has said that it is there.
    ends, answers, spare = torch.zeros(3, size, 1, dtype=torch.uint8)
    last, answered, incoming, outgoing = list[Any](), list[Any](), list[Any](), list[Any]()
    for step in range(1, size):  # each rank begins with another one
        peer = (own - step) % size
        if peer in received:
            pieces = _pieces_of(received[peer])
            incoming += [dist.irecv(each, at[peer], group, tag) for tag, each in enumerate(pieces)]
            last.append(dist.irecv(ends[peer], at[peer], group, len(pieces)))
        peer = (own + step) % size
        if peer in sent:
            pieces = [*_pieces_of(sent[peer]), spare[peer]]
            outgoing += [dist.isend(each, at[peer], group, tag) for tag, each in enumerate(pieces)]
            answered.append(dist.irecv(answers[peer], at[peer], group, _ANSWER))
    if own in received:
        received[own].copy_(sent[own])
    for each in last + incoming:
        each.wait()
    others = [at[peer] for peer in received if peer != own]
    outgoing += [dist.isend(spare[own], place, group, _ANSWER) for place in others]
    for each in answered:
        each.wait()
    for each in outgoing:
        each.wait(_MOST_WAIT)


def _pieces_of(message: Tensor) -> list[Tensor]:
    return list(message.split(_PIECE_BYTES // message.element_size()))


def is_large(num_bytes: int) -> bool:
    """Whether a message between machines goes in pieces, which both ranks know."""
    return num_bytes > _PIECE_BYTES

"""Large messages between machines, in pieces."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

_PIECE_BYTES = 1 << 18  # larger messages go in pieces
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def has_launcher() -> bool:
    """Whether a launcher such as torchrun says how many ranks are on this machine."""
    return "LOCAL_WORLD_SIZE" in os.environ


def are_on_one_machine() -> bool:
    """Whether a launcher started all ranks on this machine; the same on all of them."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE", "1")


def machine_number() -> int:
    """The same number in all processes of a machine, containers included, and in no others."""
    name = _BOOT_ID.read_text() if _BOOT_ID.exists() else socket.gethostname()
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")


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
    work: list[Any] = []
    for step in range(1, size):  # each rank begins with another one
        for call, parts, peer in (
            (dist.irecv, received, (own - step) % size),
            (dist.isend, sent, (own + step) % size),
        ):
            if peer not in parts:
                continue
            place = peer if group is None else dist.get_global_rank(group, peer)
            pieces = parts[peer].split(_PIECE_BYTES // parts[peer].element_size())
            work += [call(piece, place, group, tag) for tag, piece in enumerate(pieces)]
    if own in received:
        received[own].copy_(sent[own])
    for each in work:
        each.wait()


def is_large(num_bytes: int) -> bool:
    """Whether a message between machines goes in pieces, which both ranks know."""
    return num_bytes > _PIECE_BYTES

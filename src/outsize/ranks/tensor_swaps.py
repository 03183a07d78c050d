"""Swaps tensors of any type and length between all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from outsize.ranks.agreement import swap_headers
from outsize.ranks.collectives import RankGroup
from outsize.ranks.sections import MessageReader, MessageWriter, padded


def swap_tensors(
    ranks: RankGroup,
    outgoing: Sequence[Sequence[Tensor]],
    notes: Sequence[int] = (),
    operation: str = "a gathering of lines",
    facts: str = "",
) -> tuple[list[list[Tensor]], list[list[int]]]:
    """Send the tensors `outgoing[i]` to rank i; return as many from each rank, and their notes.

    Tensors at the same position of the lists may differ only in their number of lines. A rank's
    tensors for itself are passed through. If no rank sends anything, only the counts are swapped.

    Args:
        ranks: The ranks that take part.
        outgoing: Tensors for each rank, each with at least one dimension.
        notes: Integers for all ranks; equally many on every rank.
        operation: One of `outsize.ranks.agreement.OPERATIONS`.
        facts: What must be equal on all ranks, besides the types and shapes of the tensors.

    Returns:
        The tensors and the notes of each rank, in the order of ranks.
    """
    me, device = ranks.rank, outgoing[0][0].device
    messages = [
        _write([] if receiver == me else tensors, device)
        for receiver, tensors in enumerate(outgoing)
    ]
    num_bytes = sum(len(message) for message in messages)
    lines = [[*map(len, tensors), num_bytes, *notes] for tensors in outgoing]
    kinds = "; ".join(
        f"lines of {str(values.dtype).removeprefix('torch.')} {list(values.shape[1:])}"
        for values in outgoing[0]
    )
    theirs = swap_headers(ranks, operation, f"{facts}; {kinds}", lines, device)
    num = len(outgoing[0])
    notes_of_all = [line[num + 1 :] for line in theirs]
    if not any(line[num] for line in theirs):
        empty = [[values[:0] for values in tensors] for tensors in outgoing]
        return [
            list(outgoing[me]) if r == me else empty[r] for r in range(ranks.size)
        ], notes_of_all
    return _swap(ranks, messages, outgoing[me], [line[:num] for line in theirs]), notes_of_all


def swap_answers(
    ranks: RankGroup, outgoing: Sequence[Sequence[Tensor]], lengths: Sequence[int]
) -> list[list[Tensor]]:
    """As `swap_tensors`, with known sizes: `lengths[i]` lines of each tensor from rank i."""
    device = outgoing[0][0].device
    messages = [
        _write([] if receiver == ranks.rank else tensors, device)
        for receiver, tensors in enumerate(outgoing)
    ]
    own = outgoing[ranks.rank]
    return _swap(ranks, messages, own, [[length] * len(own) for length in lengths])


def _swap(
    ranks: RankGroup,
    messages: Sequence[UInt8[Tensor, " _"]],
    own: Sequence[Tensor],
    lengths: Sequence[Sequence[int]],
) -> list[list[Tensor]]:
    sizes = [
        0 if source == ranks.rank else sum(map(_num_bytes, own, each))
        for source, each in enumerate(lengths)
    ]
    received = ranks.swap_bytes(messages, sizes)
    return [
        list(own) if source == ranks.rank else _read(content, own, lengths[source])
        for source, content in enumerate(received)
    ]


def _write(tensors: Sequence[Tensor], device: torch.device) -> UInt8[Tensor, " _"]:
    writer = MessageWriter()
    for values in tensors:
        writer.put("tensors", values)
    return writer.message(device).content


def _read(
    content: UInt8[Tensor, " _"], like: Sequence[Tensor], lengths: Sequence[int]
) -> list[Tensor]:
    reader = MessageReader(content)
    found: list[Tensor] = []
    for example, length in zip(like, lengths, strict=True):
        shape = (length, *example.shape[1:])
        found.append(reader.take(math.prod(shape), example.dtype).view(shape))
    return found


def _num_bytes(example: Tensor, length: int) -> int:
    return padded(length * math.prod(example.shape[1:]) * example.element_size())

"""Checks that all ranks are in the same operation with the same settings.

Every round of messages starts with a header: the operation, a digest of the facts that must be
equal on all ranks (tables, widths, types, wire), and the counts of the round. Each rank receives
the headers of all ranks. If any of them differs, all raise the same message. A rank that has failed
sends a failure header (`outsize.ranks.failures.announce_failure`), and all raise.

What this cannot detect: a rank that enters no round, for which the others wait until it ends or the
backend's timeout passes, or a rank that is in a torch collective instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from outsize.errors import RanksError
from outsize.ranks.collectives import RankGroup, gather_values

FAILURE = "failure"
OPERATIONS = (
    FAILURE,
    "a read for training",
    "a read for training by a cache",
    "a flush",
    "a read for evaluation",
    "a check of items",
    "a push of items",
    "a commit of items",
    "a rewrite of items",
    "a draw of items",
    "a fetch of drawn items",
    "a gathering of lines",
    "a check for infinities",
)
_WIDTH = 16  # of every header, so that headers of different operations can be compared
FAILURE_LINE = [OPERATIONS.index(FAILURE), *[0] * (_WIDTH - 1)]


def digest_of(facts: str) -> int:
    """A hash of facts: equal facts have equal digests."""
    content = hashlib.blake2b(facts.encode(), digest_size=7).digest()
    return int.from_bytes(content, "little")


def swap_headers(
    ranks: RankGroup,
    operation: str,
    facts: str,
    lines: Sequence[Sequence[int]],
    device: torch.device | None = None,
) -> list[list[int]]:
    """Send line i to rank i and receive one line from each rank; all must be in the same operation.

    Args:
        ranks: The ranks that take part.
        operation: One of `OPERATIONS`.
        facts: A description of what must be equal on all ranks, in parts separated by "; ".
        lines: One line of integers per rank, all of equal length.
        device: Where to create the messages.

    Raises:
        RanksError: On all ranks, if any has failed, is in another operation or has other facts.
    """
    if ranks.size == 1:
        return [list(line) for line in lines]
    code, digest, num = OPERATIONS.index(operation), digest_of(facts), len(lines[0])
    filler = [0] * max(0, _WIDTH - 2 - num)
    header = torch.tensor([[code, digest, *line, *filler] for line in lines], device=device)
    theirs: list[list[int]] = ranks.swap_counts(header).tolist()
    codes, digests = [line[0] for line in theirs], [line[1] for line in theirs]
    _require_one_operation(ranks, operation, codes)
    if len(set(digests)) > 1:
        raise RanksError(_describe_difference(_gather_texts(ranks, facts, header)))
    return [line[2 : 2 + num] for line in theirs]


def require_same_on_all_ranks(facts: str) -> None:
    """Raise a `RanksError` on all ranks unless facts are equal; all ranks call it."""
    facts_by_rank = gather_values(facts)
    if len(set(facts_by_rank)) > 1:
        raise RanksError(_describe_difference(facts_by_rank))


def _require_one_operation(ranks: RankGroup, operation: str, codes: Sequence[int]) -> None:
    failed = [rank for rank, code in enumerate(codes) if OPERATIONS[code] == FAILURE]
    if failed:
        raise RanksError(
            f"rank {failed[0]} failed before {operation}, which all ranks enter together: see its "
            "own error"
        )
    if len(set(codes)) > 1:
        entered = ", ".join(f"rank {rank} {OPERATIONS[code]}" for rank, code in enumerate(codes))
        raise RanksError(
            f"the ranks entered different operations ({entered}): all must do the same, in the "
            "same order"
        )


def _gather_texts(ranks: RankGroup, text: str, like: Tensor) -> list[str]:
    content = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(like.device)
    sizes = ranks.swap_counts(like.new_full((ranks.size, 1), len(content))).flatten().tolist()
    received = ranks.swap_bytes([content] * ranks.size, sizes)
    return [bytes(part.tolist()).decode() for part in received]


def _describe_difference(facts_by_rank: Sequence[str]) -> str:
    """An error message that names the first difference between the facts of two ranks."""
    other = next(rank for rank, facts in enumerate(facts_by_rank) if facts != facts_by_rank[0])
    first, second = (facts_by_rank[rank].split("; ") for rank in (0, other))
    length = max(len(first), len(second))
    padded = [facts + ["nothing"] * (length - len(facts)) for facts in (first, second)]
    here, there = next(pair for pair in zip(*padded, strict=True) if pair[0] != pair[1])
    return (
        f"rank 0 has {here}, but rank {other} has {there}: all ranks must have the same, in the "
        "same order"
    )

"""Whether ranks that meet do the same: every round of messages begins with what it is for.

The counts with which ranks begin a round say besides which operation it belongs to, and a digest of
what all must have alike (tables, widths, types, how vectors travel). All ranks see those of all, so
if any differs, all raise, with the same words. A rank that cannot take part says so in the same
place, and all raise.

What cannot be seen here: a rank that enters no round at all, for which the others wait until it
ends or the timeout of the backend passes, or one that is in a collective of torch instead.
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
    "a look for infinities",
)
_WIDTH = 16  # of a header, so that any two operations can meet


def digest_of(facts: str) -> int:
    """A number that differs where facts do."""
    content = hashlib.blake2b(facts.encode(), digest_size=7).digest()
    return int.from_bytes(content, "little")


def swap_headers(
    ranks: RankGroup,
    operation: str,
    facts: str,
    lines: Sequence[Sequence[int]],
    device: torch.device | None = None,
) -> list[list[int]]:
    """Give rank i the numbers of line i, and get a line from each rank; all must do the same.

    Args:
        ranks: Who takes part.
        operation: What for; one of `OPERATIONS`.
        facts: What all ranks must have alike, in words.
        lines: As many numbers for each rank.
        device: Where messages are made.

    Raises:
        RanksError: On all ranks, where one has failed, is in another operation or has other facts.
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
        raise RanksError(_difference(_gather_words(ranks, facts, header)))
    return [line[2 : 2 + num] for line in theirs]


def require_alike(facts: str) -> None:
    """Raise a `RanksError` on all ranks of the launch where they differ; entered by all ranks."""
    words = gather_values(facts)
    if len(set(words)) > 1:
        raise RanksError(_difference(words))


def tell_failure(ranks: RankGroup, device: torch.device | None = None) -> None:
    """Let the ranks that have entered a round, or will, raise: this one cannot take part."""
    if ranks.size > 1:
        line = [OPERATIONS.index(FAILURE), *[0] * (_WIDTH - 1)]
        ranks.swap_counts(torch.tensor([line] * ranks.size, device=device))


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


def _gather_words(ranks: RankGroup, words: str, like: Tensor) -> list[str]:
    content = torch.frombuffer(bytearray(words.encode()), dtype=torch.uint8).to(like.device)
    sizes = ranks.swap_counts(like.new_full((ranks.size, 1), len(content))).flatten().tolist()
    received = ranks.swap_bytes([content] * ranks.size, sizes)
    return [bytes(part.tolist()).decode() for part in received]


def _difference(words: Sequence[str]) -> str:
    """Where the facts of two ranks first differ."""
    other = next(rank for rank, facts in enumerate(words) if facts != words[0])
    first, second = (words[rank].split("; ") for rank in (0, other))
    length = max(len(first), len(second))
    padded = [facts + ["nothing"] * (length - len(facts)) for facts in (first, second)]
    here, there = next(pair for pair in zip(*padded, strict=True) if pair[0] != pair[1])
    return (
        f"rank 0 has {here}, but rank {other} has {there}: make it alike on all ranks, in the same "
        "order"
    )

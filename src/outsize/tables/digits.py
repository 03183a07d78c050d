"""Ids as digits in a mixed radix, so that distinct ids have distinct digits.

All arithmetic is on integers; a float quotient would be wrong for ids above 2²⁴.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from jaxtyping import Int64
from torch import Tensor


def root_up(number: int, power: int) -> int:
    """The smallest integer base with base^`power` >= `number`."""
    return bisect_left(range(number), number, key=lambda base: base**power)


def balanced_bases(num_rows: int, num_digits: int) -> list[int]:
    """Bases that are as equal as possible, with a product >= `num_rows`; larger ones first."""
    bases, rest = [], num_rows
    for left in range(num_digits, 0, -1):
        bases.append(root_up(rest, left))
        rest = -(-rest // bases[-1])
    return bases


def split_digits(ids: Int64[Tensor, " n"], bases: Sequence[int]) -> list[Int64[Tensor, " n"]]:
    """The digits of ids, least significant first; ids must be below the product of the bases."""
    digits = []
    for base in bases[:-1]:
        quotient = ids.div(base, rounding_mode="floor")
        digits.append(ids - quotient * base)
        ids = quotient
    return [*digits, ids]

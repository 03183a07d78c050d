"""Sums of updates: lists of ascending ids, each with one line per id.

The compiled passes return the bits of the torch code: lines are added in the order of the lists.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from outsize.kernels.arrays import array, empty, is_plain, is_plain_float
from outsize.kernels.compiled import compiled, is_worthwhile
from outsize.kernels.rows.rule_numbers_numba import NO_SQUARES, SQUARES

_LEAST_IDS = 1024
_LEAST_NUMBERS = 1 << 14
_MOST_LISTS = 64  # the heads of all lists are compared for each id


def union(
    lists: Sequence[Int64[Tensor, " _"]],
) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " m"], Int32[Tensor, " n"]]:
    """The union of ascending lists of ids.

    Returns:
        All ids, ascending; the place among them of each entry, list by list; and the number of
        lists that have each id.
    """
    ids = torch.cat(list(lists))
    if (
        is_worthwhile(ids.shape[0], _LEAST_IDS)
        and len(lists) <= _MOST_LISTS
        and is_plain(ids)
        and (kernels := compiled("exchange.exchange_numba")) is not None
    ):
        found, places = torch.empty_like(ids), torch.empty_like(ids)
        counts = torch.empty(ids.shape[0], dtype=torch.int32)
        ends = torch.tensor([part.shape[0] for part in lists]).cumsum(0)
        num = kernels.union(array(ids), array(ends), array(found), array(places), array(counts))
        return found[:num], places, counts[:num]
    found, places = torch.unique(ids, return_inverse=True)
    return found, places, torch.bincount(places, minlength=found.shape[0]).to(torch.int32)


def sum_lines(
    parts: Sequence[Float[Tensor, "_ width"]],
    places: Sequence[Int64[Tensor, " _"]],
    counts: Int32[Tensor, " n"],
    divisor: int = 1,
) -> Float[Tensor, "n width"]:
    """The sums of lines by place, each divided by a number.

    Args:
        parts: Lines of each list; a place occurs once in a list at most.
        places: The place of each line.
        counts: In how many lists each place occurs: at least one.
        divisor: Divides the sums.
    """
    num, width = counts.shape[0], parts[0].shape[1]
    if (
        is_worthwhile(num * width, _LEAST_NUMBERS)
        and is_plain(counts, *places)
        and is_plain_float(*parts)
        and (kernels := compiled("exchange.exchange_numba")) is not None
    ):
        total, left = torch.empty(num, width), counts.clone()
        for part, place in zip(parts, places, strict=True):
            given = (array(part), array(place.contiguous()), float(divisor))
            kernels.add_lines(*given, array(left), array(total))
        return total
    total = parts[0].new_zeros(num, width)
    for part, place in zip(parts, places, strict=True):
        total.index_add_(0, place, part)
    return total if divisor == 1 else total / divisor


Lines = tuple[
    Int64[Tensor, " _"], Int64[Tensor, " _"], Float[Tensor, "_ width"], Float[Tensor, "_ _"] | None
]
"""Ids, ascending; their ticks; their lines; and squares, `None` if they follow from the lines."""


def add_two(
    first: Lines, second: Lines, kind: int
) -> (
    tuple[
        Int64[Tensor, " k"],
        Int64[Tensor, " k"],
        Float[Tensor, "k width"],
        Float[Tensor, "k _"] | None,
        tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]],
    ]
    | None
):
    """The sum of two lists by id, and the place of each entry; `None` if no kernel can.

    `kind` says which squares are summed, too (`UpdateRule.kernel_square`).
    """
    n, m, width = first[0].shape[0], second[0].shape[0], first[2].shape[1]
    given = [part for part in (first[3], second[3]) if part is not None]
    if not (
        is_worthwhile((n + m) * width, _LEAST_NUMBERS)
        and is_plain(*first[:2], *second[:2])
        and is_plain_float(first[2], second[2], *given)
        and (kernels := compiled("exchange.exchange_numba")) is not None
    ):
        return None
    square_width = width if kind == SQUARES else 1
    lists = [
        (*(array(part.contiguous()) for part in each[:2]), array(each[2]),
         empty(0, square_width) if each[3] is None else array(each[3]))
        for each in (first, second)
    ]  # fmt: skip
    numbers = torch.empty(2, n + m, dtype=torch.int64)
    total = torch.empty(n + m, width)
    squares = torch.empty(0 if kind == NO_SQUARES else n + m, square_width)
    places = torch.empty(n + m, dtype=torch.int64).split((n, m))
    ids, ticks = numbers
    num = kernels.add_two(
        *lists[0], *lists[1], kind, array(ids), array(ticks), array(total), array(squares),
        *map(array, places),
    )  # fmt: skip
    summed = None if kind == NO_SQUARES else squares[:num]
    return ids[:num], ticks[:num], total[:num], summed, (places[0], places[1])


def put_lines(lines: Tensor, places: Int64[Tensor, " n"], values: Tensor) -> None:
    """Write values to lines, each place once, in place."""
    if (
        is_worthwhile(values.numel(), _LEAST_NUMBERS)
        and values.dim() == 2
        and is_plain(places)
        and is_plain_float(lines, values)
        and (kernels := compiled("exchange.exchange_numba")) is not None
    ):
        kernels.put_lines(array(values), array(places.contiguous()), array(lines))
        return
    lines.index_copy_(0, places, values)

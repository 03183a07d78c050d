"""Diagnosis of learned pointers by their entropies ("Clustering the Sketch", Appendix G).

H_j is the minimum joint entropy of any j columns of pointers over all ids. If H₁ is low, the table
uses few of its codes. If H₂ is hardly above H₁, columns repeat each other, and the table may be
little more than the hashing trick (collapse), or its ids differ in little else. Entropies as high
as those of random hashes mean that clustering has found no structure: the table is CE, only slower.
Good pointers lie in between, where product quantization of a trained full table lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from outsize.hashing import derive_seed, draw_hashes, hash_ids, mix_bits
from outsize.interrupts import check_stop
from outsize.tables.pointers import unpack

_MAX_IDS = 1 << 18
_MAX_COLUMNS = 4
_IDS_PER_CODE = 4
_COLLAPSED, _RANDOM = 0.5, 0.999


@dataclass(frozen=True)
class PointerDiagnosis:
    """The entropies of a table's pointers, and a warning if they indicate a problem.

    Attributes:
        entropies: H₁ … H_c of the table, in nats; up to H₄.
        random: The same for random hashes into the same number of codes.
        quantized: The same for product quantization of a full table, if one was given.
        warning: A description of the problem; empty if there is none.
        column_bits: Sum of the entropies of the columns, in bits: what the pointers of an id would
            take on average if each column were entropy coded.
    """

    entropies: tuple[float, ...]
    random: tuple[float, ...]
    quantized: tuple[float, ...] | None
    warning: str
    column_bits: float


def diagnose_pointers(
    pointers: Integer[Tensor, "n columns"],
    num_codes: int,
    quantized: Integer[Tensor, "n columns"] | None = None,
) -> PointerDiagnosis:
    """Compare pointers with random ones, and with those of a quantized full table.

    If there are very many ids, an evenly spaced sample is used.

    Args:
        pointers: The pointers of all ids, packed or not.
        num_codes: Number of codes that a pointer chooses from.
        quantized: Pointers of the same ids from `outsize.quantize` of a trained full table.
    """
    num_ids, columns = pointers.shape
    ids = spread_ids(num_ids, _MAX_IDS).to(pointers.device)
    hashes = draw_hashes(columns, derive_seed(0, "entropy")).to(ids.device)
    some = unpack(pointers[ids])
    found = pointer_entropies(some)
    random = pointer_entropies(hash_ids(ids, hashes, num_codes))
    goal = None if quantized is None else pointer_entropies(unpack(quantized[ids]))
    enough = ids.numel() >= _IDS_PER_CODE * num_codes  # with fewer, each id may have its own code
    warning = pointer_warning(found, random, goal) if enough else ""
    bits = sum(pointer_entropies(column.unsqueeze(1))[0] for column in some.unbind(1))
    return PointerDiagnosis(found, random, goal, warning, bits / math.log(2))


def pointer_entropies(pointers: Int64[Tensor, "n columns"]) -> tuple[float, ...]:
    """H₁ … H_c in nats: for each j up to 4, the minimum joint entropy of any j columns."""
    num_ids, columns = pointers.shape
    keys = mix_bits(pointers)
    found = []
    for size in range(1, min(columns, _MAX_COLUMNS) + 1):
        joint = []
        for chosen in _choices(columns, size):
            check_stop()
            key = torch.zeros(num_ids, dtype=torch.int64, device=pointers.device)
            for column in chosen:  # with 64 mixed bits collisions are negligible
                key = mix_bits(key + 1) ^ keys[:, column]
            counts = torch.unique(key, return_counts=True)[1].double()
            joint.append(math.log(num_ids) - float((counts * counts.log()).sum()) / num_ids)
        found.append(max(0.0, min(joint)))
    return tuple(found)


def pointer_warning(
    found: Sequence[float], random: Sequence[float], quantized: Sequence[float] | None = None
) -> str:
    """A warning if entropies indicate collapse or random pointers; empty otherwise.

    Args:
        found: H₁ … of the table.
        random: H₁ … of random hashes for the same number of ids and codes.
        quantized: H₁ … of product quantization of a trained full table, if known.
    """
    goal = random if quantized is None else quantized
    name = "random hashes" if quantized is None else "product quantization"
    if found[0] < _COLLAPSED * goal[0]:
        return (
            f"collapse: a column uses few of its codes (H1 {found[0]:.2f}, against {goal[0]:.2f} "
            f"for {name}); lower the learning rate, or recluster less often"
        )
    if len(found) > 1 and found[1] - found[0] < _COLLAPSED * (goal[1] - goal[0]):
        return (
            f"collapse: two columns say nearly the same (H2 {found[1]:.2f} is only "
            f"{found[1] - found[0]:.2f} above H1, against {goal[1] - goal[0]:.2f} for {name}): "
            "fewer columns may do as well; if validation is no better than with hashing, recluster "
            "less often"
        )
    ceiling = _RANDOM if quantized is None else (1 + quantized[0] / random[0]) / 2
    if found[0] > ceiling * random[0] and found[-1] > ceiling * random[-1]:
        return (
            f"only CE, slower: pointers are as random as hashes (H1 {found[0]:.2f} of "
            f"{random[0]:.2f}), so clustering has found nothing yet; train longer before it"
        )
    return ""


def spread_ids(num_ids: int, most: int) -> Int64[Tensor, " n"]:
    """All ids, or `most` of them at even spacing."""
    if num_ids <= most:
        return torch.arange(num_ids)
    return torch.arange(most) * num_ids // most


def _choices(columns: int, size: int) -> list[tuple[int, ...]]:
    """The sets of columns to compare: all, or only neighbours if there are many columns."""
    if columns <= 8:
        return list(combinations(range(columns), size))
    return [tuple((first + i) % columns for i in range(size)) for first in range(columns)]

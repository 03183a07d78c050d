"""Fresh parameters of tables whose vectors are products.

A product of independent factors has the product of their standard deviations, and a sum of n such
products √n times that. A table of zeros has one zero factor: with two, no gradient would reach
either.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from torch import nn

from outsize.spec import Init, TableSpec
from outsize.tables.weights import fresh_weight


def factor_stds(spec: TableSpec, num_factors: int, num_terms: int = 1) -> list[float]:
    """Standard deviations of the factors of vectors that have the asked one.

    Args:
        spec: The table; where it asks for zeros, the last factor is zero and the others are not.
        num_factors: Factors of a product.
        num_terms: Products that are added.
    """
    asked = spec.init.std_for(spec.dim)
    each = equal_std(asked or Init().std_for(spec.dim), num_factors, num_terms)
    return [each] * (num_factors - 1) + [each if asked else 0.0]


def equal_std(std: float, num_factors: int, num_terms: int = 1) -> float:
    """The standard deviation of factors that are drawn alike, for sums of products with `std`."""
    return float((std / math.sqrt(num_terms)) ** (1 / num_factors))


def fresh_factor(
    spec: TableSpec,
    num_rows: int,
    dim: int,
    std: float,
    seed: int,
    part: str,
    distribution: Literal["uniform", "normal"] | None = None,
) -> nn.Parameter:
    """A `(num_rows, dim)` parameter that is zero only if `std` is.

    Args:
        spec: The table it belongs to.
        num_rows: Its height.
        dim: Its width.
        std: Standard deviation of its values.
        seed: The table's seed.
        part: Which of the table's parameters; each has draws of its own.
        distribution: By default that of the spec, and "uniform" where it asks for zeros.
    """
    if distribution is None:
        asked = spec.init.distribution
        distribution = "uniform" if asked == "zeros" else asked
    drawn = replace(spec, init=Init(distribution))
    return fresh_weight(drawn, num_rows, dim, std, seed, part)

"""Initial parameters of tables whose vectors are products of factors.

The standard deviation of a product of independent factors is the product of theirs; for a sum of n
such products it is √n times larger. A table that starts at zero has exactly one zero factor: with
two, no gradient would reach either.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from torch import nn

from outsize.spec import Init, TableSpec
from outsize.tables.weights import fresh_weight


def factor_stds(spec: TableSpec, num_factors: int, num_terms: int = 1) -> list[float]:
    """Standard deviations of the factors, such that vectors have the spec's standard deviation.

    Args:
        spec: The table; if its init is zeros, the last factor is zero and the others are not.
        num_factors: Factors per product.
        num_terms: Products per sum.
    """
    asked = spec.init.std_for(spec.dim)
    each = equal_std(asked or Init().std_for(spec.dim), num_factors, num_terms)
    return [each] * (num_factors - 1) + [each if asked else 0.0]


def equal_std(std: float, num_factors: int, num_terms: int = 1) -> float:
    """The common standard deviation of the factors, such that sums of products have `std`."""
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
        num_rows: Its number of rows.
        dim: Its number of columns.
        std: Standard deviation of its values.
        seed: The table's seed.
        part: The name of the parameter; each parameter of a table has its own random draws.
        distribution: By default that of the spec, or "uniform" if the spec asks for zeros.
    """
    if distribution is None:
        asked = spec.init.distribution
        distribution = "uniform" if asked == "zeros" else asked
    drawn = replace(spec, init=Init(distribution))
    return fresh_weight(drawn, num_rows, dim, std, seed, part)

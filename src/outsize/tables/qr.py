"""Compositional embeddings by complementary partitions (Shi et al. 2020, arXiv 1909.02107).

An id is written in digits, from the remainder to the last quotient. Each digit has a table:

    T[i] = M₁[i mod m] ⊙ M₂[⌊i / m⌋]

for two digits (the "quotient-remainder trick"), and likewise for more. No two ids have the same
digits.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.errors import ConfigError
from outsize.spec import Budget, TableSpec
from outsize.tables.digits import root_up, split_digits
from outsize.tables.sizing import Cost, largest_size
from outsize.tables.weights import fresh_weight


class QRTable(EmbeddingTable):
    """Multiplies or adds the rows of an id's digits.

    For a budget, the number of digits is as small as possible, and the base then as large as
    possible. With one digit, this is a full table. All factors but the first start at 1.

    Args:
        spec: The table.
        base: Base of all digits but the last, which covers the rest; m in the paper.
        num_digits: Digits per id; by default as many as `base` needs.
        combine: "multiply" or "add".
        seed: Seed of the initial rows.
        papers_init: Draw rows as DLRM intends, uniformly from ± rows^-½ in each digit's table,
            instead of at the scale of the spec.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        base: int,
        num_digits: int | None = None,
        combine: Literal["multiply", "add"] = "multiply",
        seed: int = 0,
        papers_init: bool = False,
    ) -> None:
        super().__init__(spec)
        if combine not in ("multiply", "add"):
            raise ConfigError(
                f"table {spec.name!r}: combine must be multiply or add, but got {combine!r}"
            )
        if base < min(2, spec.num_rows):
            raise ConfigError(f"table {spec.name!r}: base must be >= 2, but got {base}")
        if num_digits is None:
            num_digits = next(d for d in _digit_counts(spec) if base**d >= spec.num_rows)
        _require_digits(spec, num_digits)
        self.combine = combine
        self.base = base
        self.bases = _bases(spec.num_rows, base, num_digits)
        asked = spec.init.std_for(spec.dim)
        if papers_init:
            stds = [(3 * rows) ** -0.5 for rows in self.bases]
        elif combine == "multiply":
            stds = [asked] + [0.0] * (num_digits - 1)
        else:
            stds = [asked * num_digits**-0.5] * num_digits
        parts = [
            fresh_weight(spec, rows, spec.dim, std, seed, f"digit {j}").detach()
            for j, (rows, std) in enumerate(zip(self.bases, stds, strict=True))
        ]
        if combine == "multiply" and not papers_init:
            parts[1:] = [torch.ones_like(part) for part in parts[1:]]
        self.weight = nn.Parameter(torch.cat(parts))

    @classmethod
    def within(  # noqa: D102
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> QRTable:
        asked = options.pop("num_digits", None)
        if asked is not None:
            _require_digits(spec, asked)
        least = {d: root_up(spec.num_rows, d) for d in _digit_counts(spec)}

        def cost(num_digits: int, base: int) -> Cost:
            return Cost(sum(_bases(spec.num_rows, base, num_digits)) * spec.dim)

        def fits(num_digits: int) -> bool:
            smallest = cost(num_digits, least[num_digits])
            return budget.allows(smallest.num_params, smallest.num_bytes(spec))

        cheapest = min(least, key=lambda d: cost(d, least[d]).num_params)
        num_digits = asked or next(filter(fits, least), cheapest)
        base = largest_size(
            "qr",
            spec,
            budget,
            partial(cost, num_digits),
            least=least[num_digits],
            most=_largest_base(spec.num_rows, num_digits),
        )
        return cls(spec, base=base, num_digits=num_digits, seed=seed, **options)

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {"base": self.base, "num_digits": len(self.bases), "combine": self.combine}

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:  # noqa: D102
        places, start = [], 0
        for digit, rows in zip(split_digits(ids, self.bases), self.bases, strict=True):
            places.append(digit + start)
            start += rows
        found = self.weight.index_select(0, torch.cat(places))
        rows_of = found.view(len(places), *ids.shape, self.spec.dim)
        vectors = rows_of[0]
        for row in rows_of[1:]:
            vectors = vectors * row if self.combine == "multiply" else vectors + row
        return vectors


def _digit_counts(spec: TableSpec) -> range:
    """The possible numbers of digits: from 1 to that of base 2."""
    return range(1, max(1, (spec.num_rows - 1).bit_length()) + 1)


def _require_digits(spec: TableSpec, num_digits: int) -> None:
    if num_digits not in _digit_counts(spec):
        raise ConfigError(
            f"table {spec.name!r}: num_digits must be between 1 and {_digit_counts(spec)[-1]} "
            f"for {spec.num_rows} rows, but got {num_digits}"
        )


def _bases(num_rows: int, base: int, num_digits: int) -> list[int]:
    """The number of rows of each digit's table; the last digit covers the rest."""
    return [base] * (num_digits - 1) + [-(-num_rows // base ** (num_digits - 1))]


def _largest_base(num_rows: int, num_digits: int) -> int:
    """The largest base with which the last digit has more than one value."""
    return num_rows if num_digits == 1 else root_up(num_rows, num_digits - 1) - 1

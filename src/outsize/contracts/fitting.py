"""Fits the parameters of any table to given rows, by least squares with L-BFGS.

For a table whose vectors are linear in its parameters this approaches the best approximation; for
others, such as networks, it finds a local one.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.errors import DataError
from outsize.spec import TableSpec

_CHUNK_IDS = 1 << 16
_HISTORY = 10
_ITERATIONS = 40  # at most; each reads all rows at least once


def require_counts(spec: TableSpec, counts: Int64[Tensor, " num_rows"]) -> None:
    """Raise a `DataError` unless counts are one finite number >= 0 per id."""
    has_shape = counts.shape == (spec.num_rows,)
    if not has_shape or not bool((counts.isfinite() & (counts >= 0)).all()):
        found = f"have the shape {tuple(counts.shape)}"
        if has_shape:
            found = f"are between {counts.min()} and {counts.max()}"
        raise DataError(
            f"table {spec.name!r}: counts must be {spec.num_rows:,} numbers >= 0, one for each "
            f"id, but {found}"
        )


def fit_by_gradient(
    table: nn.Module,
    rows: Float[Tensor, "num_rows dim"],
    counts: Int64[Tensor, " num_rows"] | None = None,
) -> None:
    """Minimize the squared distance between the vectors of a table and given rows.

    Args:
        table: A module that maps ids to vectors. Parameters in half precision are fitted in
            float32 and then rounded.
        rows: The vector that each id should have.
        counts: Weight of each id; 1 by default.
    """
    dtype = next(table.parameters()).dtype
    if dtype.itemsize < 4:
        table.float()
    parameters = [p for p in table.parameters() if p.requires_grad]
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=_ITERATIONS,
        history_size=_HISTORY,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
    weights = torch.ones_like(rows[:, 0]) if counts is None else counts.to(rows)
    weights = weights.to(parameters[0].dtype)
    energy = (rows.to(weights.dtype).square().sum(dim=1) @ weights).clamp(min=1e-30)

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros_like(energy)
        for ids in torch.arange(rows.shape[0], device=rows.device).split(_CHUNK_IDS):
            errors = (table(ids) - rows[ids].to(weights.dtype)).square().sum(dim=1)
            loss = errors @ weights[ids] / energy
            loss.backward()
            total += loss.detach()
        return total

    with torch.enable_grad():
        optimizer.step(closure)
    optimizer.zero_grad()
    table.to(dtype)

"""Ids are int64 and checked against their table.

On the CPU a bad id raises where it is used. On CUDA that would cost a synchronisation per look-up
(or a device assert that poisons the process), so a bad id is replaced by row 0 and remembered in
a flag; `raise_if_bad`, called once at a step's end, reports it before the step is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.errors import DataError, IdError

_NONE = torch.iinfo(torch.int64).min


class IdGuard:
    """Checks columns of ids, each against the number of rows of its table.

    Args:
        num_rows: What to call each column in an error → how many rows its ids may name.
    """

    def __init__(self, num_rows: Mapping[str, int]) -> None:
        self._names = tuple(num_rows)
        self._limits = tuple(num_rows.values())
        self._bounds = torch.tensor(self._limits, dtype=torch.int64)
        self._worst: Tensor | None = None

    def __call__(self, ids: Int64[Tensor, "n columns"]) -> Int64[Tensor, "n columns"]:
        """Return ids that are safe to use as indices, or raise `IdError` (CPU) / flag (CUDA)."""
        if torch.compiler.is_compiling():
            return ids  # compiled indexing checks its own bounds
        if ids.dtype != torch.int64:
            raise DataError(
                f"{self._names[0]}: ids must be int64, but got {ids.dtype}: use .long()"
            )
        if self._bounds.device != ids.device:
            self._bounds = self._bounds.to(ids.device)
        bad = (ids < 0) | (ids >= self._bounds)
        if ids.device.type == "cpu":
            if bool(bad.any()):
                column = int(bad.any(dim=0).nonzero()[0])
                self._raise(column, int(ids[bad[:, column], column][0]))
            return ids
        if ids.shape[0]:
            worst = torch.where(bad, ids, _NONE).amax(dim=0)
            self._worst = worst if self._worst is None else torch.maximum(self._worst, worst)
        return ids.masked_fill(bad, 0)

    def raise_if_bad(self) -> None:
        """Report ids flagged on CUDA since the last call (one synchronisation)."""
        if self._worst is None:
            return
        worst = self._worst.tolist()
        self._worst = None
        for column, bad_id in enumerate(worst):
            if bad_id != _NONE:
                self._raise(column, bad_id)

    def _raise(self, column: int, bad_id: int) -> None:
        raise IdError(
            f"{self._names[column]}: id {bad_id} is outside 0 … {self._limits[column] - 1}; "
            "enlarge num_rows, or map unknown ids to a row of their own"
        )

"""Checks that ids are int64 and within their table.

On the CPU a bad id raises at once. On CUDA that would cost one synchronization per look-up (or a
device assert, after which the process cannot use CUDA). So a bad id reads row 0 and sets a flag;
`raise_if_bad`, called at the end of a step, reports it before anything is saved. `torch.compile`
sees the check as one opaque operator. `torch.export` gets an assertion instead, as its program may
run where there is no guard. On the meta device ids have no values, and are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.errors import DataError, IdError
from outsize.kernels.ids.checked import NONE, checked_ids

_NUMBERS = count()
_GUARDS: WeakValueDictionary[int, IdGuard] = WeakValueDictionary()


def is_exporting() -> bool:
    """Whether `torch.export` traces this call; torch 2.6 cannot tell.

    Some versions also say so of `torch.compile`.
    """
    known: Any = getattr(torch.compiler, "is_exporting", None)
    return known is not None and bool(known()) and not torch.compiler.is_dynamo_compiling()


class IdGuard:
    """Checks columns of ids, each against the number of rows of its table.

    Args:
        num_rows: Name of each column, for errors → number of rows of its table.
    """

    def __init__(self, num_rows: Mapping[str, int]) -> None:
        self._names = tuple(num_rows)
        self._limits = tuple(num_rows.values())
        self._bounds: Tensor | None = None
        self._worst: Tensor | None = None
        self._number = next(_NUMBERS)
        _GUARDS[self._number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is an independent guard without flagged ids."""
        return IdGuard, (dict(zip(self._names, self._limits, strict=True)),)

    def __call__(self, ids: Int64[Tensor, "n columns"]) -> Int64[Tensor, "n columns"]:
        """Return ids that are safe to use as indices, or raise `IdError` (CPU) / flag (CUDA)."""
        if ids.dtype != torch.int64:
            raise DataError(
                f"{self._names[0]}: ids must be int64, but got {ids.dtype}: use .long()"
            )
        if is_exporting():
            return self._check_exported(ids)
        if torch.compiler.is_compiling():
            checked: Tensor = _check_compiled(ids, self._number)
            return checked
        return self._check(ids)

    def prepare(self, device: torch.device) -> Int64[Tensor, " columns"]:
        """Allocate the buffers of the check, at an address that captured CUDA graphs can use.

        Returns:
            The number of rows of each column's table, on that device.
        """
        if self._bounds is None or self._bounds.device != device:
            self._bounds = torch.tensor(self._limits, dtype=torch.int64, device=device)
            if device.type != "cpu":
                self._worst = torch.full_like(self._bounds, NONE)
        return self._bounds

    def worst(self) -> Int64[Tensor, " columns"]:
        """The greatest bad id of each column so far, on the device of the last `prepare`.

        A kernel that checks ids itself raises it to the ids that are out of bounds.
        """
        assert self._worst is not None, "prepare it for a device that flags ids"
        return self._worst

    def _check(self, ids: Int64[Tensor, "n columns"]) -> Int64[Tensor, "n columns"]:
        if ids.is_meta:
            return ids
        if ids.device.type == "cpu" and self._are_inside(ids):
            return ids
        bounds = self.prepare(ids.device)
        if ids.device.type != "cpu":
            return checked_ids(ids, bounds, self.worst())
        bad = (ids < 0) | (ids >= bounds)
        column = int(bad.any(dim=0).nonzero()[0])
        raise self._error(column, int(ids[bad[:, column], column][0]))

    def _are_inside(self, ids: Int64[Tensor, "n columns"]) -> bool:
        """Whether all ids are in range, in one pass."""
        if not ids.numel():
            return True
        if len(self._limits) == 1:
            least, greatest = ids.aminmax()
            return int(least) >= 0 and int(greatest) < self._limits[0]
        least, greatest = ids.aminmax(dim=0)
        return bool((least >= 0).all()) and bool((greatest < self.prepare(ids.device)).all())

    def _check_exported(self, ids: Int64[Tensor, "n columns"]) -> Int64[Tensor, "n columns"]:
        for column, (name, limit) in enumerate(zip(self._names, self._limits, strict=True)):
            own = ids[:, column]
            is_good = ((own >= 0) & (own < limit)).all()
            message = f"{name}: an id is outside 0 … {limit - 1}"
            torch.ops.aten._assert_async.msg(is_good, message)
        return ids

    def raise_if_bad(self) -> None:
        """Raise if an id was flagged on CUDA since the last call (one synchronization)."""
        if self._worst is None:
            return
        worst = self._worst.tolist()
        self._worst.fill_(NONE)
        for column, bad_id in enumerate(worst):
            if bad_id != NONE:
                raise self._error(column, bad_id)

    def _error(self, column: int, bad_id: int) -> IdError:
        return IdError(
            f"{self._names[column]}: id {bad_id} is outside 0 … {self._limits[column] - 1}; "
            "increase num_rows, or map unknown ids to a row of their own"
        )


@torch.library.custom_op(
    "outsize::check_ids", mutates_args=(), schema="(Tensor ids, int guard) -> Tensor"
)
def _check_compiled(ids: Tensor, guard: int) -> Tensor:
    """`IdGuard` as an operator; its result must not be one of its inputs."""
    safe = _GUARDS[guard]._check(ids)
    return safe.clone() if safe is ids else safe


@_check_compiled.register_fake
def _shape_of_checked(ids: Tensor, guard: int) -> Tensor:
    return torch.empty_like(ids)

"""Look-up, and backward pass with the update of rows, on CUDA.

A backward pass sorts the batch by row, sums the gradients of each row, and then updates all rows,
or none if a sum is NaN or infinite: the device decides, and the host does not wait for it. All
shapes depend on the number of ids alone. So a step can be captured in a CUDA graph and replayed:
settings are read from memory on the device, where `DeviceUpdates.bind` puts them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

from outsize.errors import ConfigError
from outsize.kernels.distinct.distinct import key_type
from outsize.kernels.distinct.distinct_triton import sorted_runs
from outsize.kernels.fused.fused import RowsInPlace
from outsize.kernels.gather.gather import Bags
from outsize.kernels.gather.gather_triton import read_columns_by_triton, read_lines_by_triton
from outsize.kernels.gather.sums_triton import sum_by_triton
from outsize.kernels.rows.in_place import Rule
from outsize.kernels.rows.updates_triton import can_update, update_by_triton


class DeviceUpdates:
    """What updates on a device read and leave in its memory, at addresses that do not change.

    Args:
        device: The device.

    Attributes:
        settings: The settings of the rule.
        is_bad: Not 0 once a sum of gradients was NaN or infinite; no row is updated from then on.
    """

    def __init__(self, device: torch.device) -> None:
        self.settings = torch.zeros(8, device=device)
        self.is_bad = torch.zeros(1, dtype=torch.int32, device=device)
        self._bound: tuple[float, ...] = ()

    def bind(self, settings: tuple[float, ...]) -> None:
        """Use these settings from now on, also in replays of captured updates."""
        if settings == self._bound:
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            if not self._bound:
                raise ConfigError("run a step before you capture one in a CUDA graph")
            return  # a captured write would be repeated with every replay
        known = self._bound or (None,) * len(settings)
        for place, (before, now) in enumerate(zip(known, settings, strict=True)):
            if before != now:
                self.settings[place].fill_(now)
        self._bound = settings


def can_train(table: RowsInPlace) -> bool:
    """Whether the kernels can update the rows of a table."""
    return can_update(table.rows, table.state) and table.rows.shape[1] > 0


def look_up_columns(
    table: RowsInPlace,
    columns: Sequence[Int64[Tensor, " n"]],
    bounds: Int64[Tensor, " columns"],
    offsets: Int64[Tensor, " columns"],
    worst: Int64[Tensor, " columns"],
) -> tuple[Int[Tensor, " _"], Float32[Tensor, "_ dim"]]:
    """Rows of columns of unchecked ids, by example: the row of each id, and one line for each.

    Args:
        table: The rows.
        columns: Ids, as many in each column.
        bounds: The ids of a column are below its bound.
        offsets: What to add to each column.
        worst: Raised to the greatest id of each column that is out of bounds; it reads row 0.
    """
    ids = side_by_side(columns)
    keys = torch.empty(ids.numel(), dtype=key_type(table.rows.shape[0]), device=table.rows.device)
    return keys, read_columns_by_triton(table.rows, ids, bounds, offsets, worst, keys)


def side_by_side(columns: Sequence[Int64[Tensor, " n"]]) -> Int64[Tensor, "n columns"]:
    """The columns as one tensor: without a copy if they are evenly spaced in one memory."""
    first, num = columns[0], len(columns)
    stride, begin = first.stride(0), first.data_ptr()
    step = columns[min(1, num - 1)].data_ptr() - begin
    memory = first.untyped_storage()
    is_inside = columns[-1].data_ptr() < memory.data_ptr() + memory.nbytes()
    if (
        step < 0
        or not is_inside
        or any(
            column.data_ptr() != begin + number * step or column.stride(0) != stride
            for number, column in enumerate(columns)
        )
    ):
        return torch.stack(list(columns), dim=1)
    return first.as_strided((first.shape[0], num), (stride, step // first.itemsize))


def look_up(
    table: RowsInPlace, ids: Int64[Tensor, " n"], bags: Bags | None
) -> tuple[Int[Tensor, " n"], Float32[Tensor, "lines dim"]]:
    """The row of each store id, and one line for each, or for each bag."""
    keys = (ids - table.start).to(key_type(table.rows.shape[0]))
    return keys, read_lines_by_triton(table.rows, keys, bags)


def train(
    table: RowsInPlace,
    rule: Rule,
    device: DeviceUpdates,
    keys: Int[Tensor, " n"],
    bags: Bags | None,
    gradients: Float[Tensor, "lines dim"],
) -> Float32[Tensor, " programs"]:
    """Update the rows of a batch by the gradients of its lines, each row once.

    Args:
        table: The rows.
        rule: How to update them.
        device: Settings and the flag; an update that would set the flag changes no row.
        keys: The rows, of a `key_type`.
        bags: How they form the lines; `None` for one line per id.
        gradients: One per line.

    Returns:
        Numbers whose sum is Σ over rows of Σg²; NaN if the flag is set.
    """
    number, settings = rule
    device.bind(settings)
    if not keys.shape[0]:
        return torch.zeros(1, device=keys.device)
    found = sorted_runs(keys)
    lines = None if bags is None else bags.lines_of(keys.shape[0])
    scales = None if bags is None else bags.scales
    totals = sum_by_triton(
        gradients.contiguous(), found, table.rows.shape[0], device.is_bad, lines, scales
    )
    return update_by_triton(
        number, device.settings, table.rows, table.state, table.clocks, totals.keys, totals.lines,
        seed=table.seed, first_id=table.start, runs=totals.runs, is_bad=device.is_bad,
    )  # fmt: skip

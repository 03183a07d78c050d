"""Specifications of tables and features, memory budgets and memory use.

A `TableSpec` asks for a number of rows of some width. A `FeatureSpec` points to a table and says
how bags of ids are pooled. A `Budget` limits what a table may cost, and a `MemoryUse` says what it
does cost. All are independent of whether rows are full, compressed or cached.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from outsize.errors import BudgetError, ConfigError

Pooling = Literal["sum", "mean", "max"]
POOLINGS: tuple[Pooling, ...] = ("sum", "mean", "max")
MemoryKind = Literal["parameters", "index", "optimizer", "cache"]
MEMORY_KINDS: tuple[MemoryKind, ...] = ("parameters", "index", "optimizer", "cache")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*")


def _require_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{kind} name {name!r} is not usable as a key in a state dict: "
            "use letters, digits, '_' and, after the first, '-'"
        )


@dataclass(frozen=True)
class Init:
    """The distribution of initial rows.

    Every value is a pure function of (seed, table, row, column), so a table starts out the same
    however it is sharded, and a row created late has the value it would have had at the start.

    Attributes:
        distribution: "uniform", "normal" or "zeros".
        std: Standard deviation of each value. The default, `None`, is `1 / sqrt(3 * dim)`: rows
            then have an expected squared norm of 1/3, as when drawn uniformly from ±dim^-½.
    """

    distribution: Literal["uniform", "normal", "zeros"] = "uniform"
    std: float | None = None

    def __post_init__(self) -> None:
        if self.distribution not in ("uniform", "normal", "zeros"):
            raise ConfigError(
                f"init distribution must be uniform, normal or zeros, but got {self.distribution!r}"
            )
        if self.std is not None and not (math.isfinite(self.std) and self.std >= 0):
            raise ConfigError(f"init std must be a finite number >= 0, but got {self.std}")

    def std_for(self, dim: int) -> float:
        """The standard deviation at width `dim`."""
        if self.distribution == "zeros":
            return 0.0
        return 1.0 / math.sqrt(3 * dim) if self.std is None else self.std


@dataclass(frozen=True)
class TableSpec:
    """What a model asks for: `num_rows` vectors of width `dim`.

    Attributes:
        name: Unique among the tables of a model; letters, digits, `_` and `-`.
        num_rows: Ids of this table are `0 … num_rows - 1`.
        dim: Width of a row.
        init: The distribution of initial rows.
        dtype: Floating-point type the rows are stored in.
    """

    name: str
    num_rows: int
    dim: int
    init: Init = field(default_factory=Init)
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        _require_name("table", self.name)
        if self.num_rows < 1:
            raise ConfigError(
                f"table {self.name!r}: num_rows must be >= 1, but got {self.num_rows}"
            )
        if self.dim < 1:
            raise ConfigError(f"table {self.name!r}: dim must be >= 1, but got {self.dim}")
        if not self.dtype.is_floating_point:
            raise ConfigError(f"table {self.name!r}: dtype must be floating, but got {self.dtype}")


@dataclass(frozen=True)
class FeatureSpec:
    """A column of the data that points to a table; several features may share one.

    Attributes:
        name: Unique among the features of a model.
        table: Name of the table its ids belong to; by default a table of the same name.
        pooling: How a bag of ids becomes one vector.
        padding_id: An id that marks padding: it is left out of every bag, has no row and may lie
            outside the table (usually -1).
    """

    name: str
    table: str = ""
    pooling: Pooling = "sum"
    padding_id: int | None = None

    def __post_init__(self) -> None:
        _require_name("feature", self.name)
        if not self.table:
            object.__setattr__(self, "table", self.name)
        if self.pooling not in POOLINGS:
            raise ConfigError(
                f"feature {self.name!r}: pooling must be one of {', '.join(POOLINGS)}, "
                f"but got {self.pooling!r}"
            )


@dataclass(frozen=True)
class Budget:
    """The most a table may cost; `None` means no limit.

    Attributes:
        max_params: Maximum number of trainable parameters.
        max_bytes: Maximum number of bytes, including index maps.
    """

    max_params: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_params is not None and self.max_bytes is not None:
            raise ConfigError("give a budget as max_params or as max_bytes, not as both")

    @property
    def is_set(self) -> bool:
        """Whether there is a limit at all."""
        return self.max_params is not None or self.max_bytes is not None

    def allows(self, num_params: int, num_bytes: int) -> bool:
        """Whether a cost stays within the budget."""
        return (self.max_params is None or num_params <= self.max_params) and (
            self.max_bytes is None or num_bytes <= self.max_bytes
        )

    def require(self, what: str, num_params: int, num_bytes: int) -> None:
        """Raise a `BudgetError` that begins with `what` if a cost exceeds the budget."""
        for limit, cost, unit in (
            (self.max_params, num_params, "parameters"),
            (self.max_bytes, num_bytes, "bytes"),
        ):
            if limit is not None and cost > limit:
                raise BudgetError(
                    f"{what} needs {cost:,} {unit}, more than the budget of {limit:,}: "
                    "raise it, or choose a method that compresses more"
                )


@dataclass(frozen=True)
class MemoryUse:
    """Memory cost: the number of trainable parameters, and bytes by device and kind.

    Costs can be added: `full.memory_use() + cache.memory_use()`.

    Attributes:
        num_parameters: Number of trainable parameters, of any type.
        bytes_by_device: Device name → kind → bytes. The kinds are "parameters", "index" (maps
            from ids to rows), "optimizer" (state of row optimizers) and "cache" (copies).
    """

    num_parameters: int = 0
    bytes_by_device: Mapping[str, Mapping[MemoryKind, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Mapping[MemoryKind, Iterable[torch.Tensor]]) -> MemoryUse:
        """Sum the sizes of tensors by kind and device, and count the "parameters"."""
        count = 0
        sizes: dict[str, dict[MemoryKind, int]] = {}
        for kind, group in tensors.items():
            for tensor in group:
                device = sizes.setdefault(str(tensor.device), dict.fromkeys(MEMORY_KINDS, 0))
                device[kind] += tensor.numel() * tensor.element_size()
                count += tensor.numel() if kind == "parameters" else 0
        return cls(count, sizes)

    def bytes_of(self, kind: MemoryKind) -> int:
        """Bytes of one kind over all devices."""
        return sum(kinds.get(kind, 0) for kinds in self.bytes_by_device.values())

    @property
    def total_bytes(self) -> int:
        """All bytes, including index maps and optimizer state."""
        return sum(sum(kinds.values()) for kinds in self.bytes_by_device.values())

    def __add__(self, other: MemoryUse) -> MemoryUse:
        merged: dict[str, dict[MemoryKind, int]] = {}
        for use in (self, other):
            for device, kinds in use.bytes_by_device.items():
                sums = merged.setdefault(device, dict.fromkeys(MEMORY_KINDS, 0))
                for kind, size in kinds.items():
                    sums[kind] += size
        return MemoryUse(self.num_parameters + other.num_parameters, merged)

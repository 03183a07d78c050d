"""The report of `compress_`: what each embedding cost before and after, and how close it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from outsize.contracts import EmbeddingTable

_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class CompressedModule:
    """An embedding that was replaced, or several that share a weight.

    Attributes:
        names: Names of the modules in the model.
        method: The method of its table.
        num_rows: Number of ids.
        dim: Width of a vector.
        bytes_before: Bytes of the weight.
        bytes_after: Bytes of the table, with its index maps, and of padding rows.
        mse: Mean squared distance between the vectors of ids before and after.
        variance: Mean squared distance of the vectors before to their mean: the error of a table
            that gives all ids one vector.
    """

    names: tuple[str, ...]
    method: str
    num_rows: int
    dim: int
    bytes_before: int
    bytes_after: int
    mse: float
    variance: float

    @property
    def relative_error(self) -> float:
        """`mse / variance`: 0 if every vector is kept, 1 if only their mean is."""
        return self.mse / self.variance if self.variance else float(self.mse > 0)


@dataclass(frozen=True)
class CompressionReport:
    """What `compress_` did.

    Attributes:
        modules: The embeddings that were replaced.
        skipped: Name of each other embedding → why it was left as it is.
    """

    modules: tuple[CompressedModule, ...]
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def bytes_before(self) -> int:
        """Bytes of all weights that were replaced."""
        return sum(module.bytes_before for module in self.modules)

    @property
    def bytes_after(self) -> int:
        """Bytes of what they were replaced by."""
        return sum(module.bytes_after for module in self.modules)

    def __str__(self) -> str:
        lines = [
            f"{' = '.join(one.names)}: {one.num_rows:,} x {one.dim}, {one.method}, "
            f"{one.bytes_before:,} -> {one.bytes_after:,} bytes, "
            f"relative error {one.relative_error:.3g}"
            for one in self.modules
        ]
        lines += [f"{name}: skipped, {why}" for name, why in self.skipped.items()]
        return "\n".join([*lines, f"total: {self.bytes_before:,} -> {self.bytes_after:,} bytes"])


@torch.no_grad()
def errors_of(
    table: EmbeddingTable, rows: Float[Tensor, "num_rows dim"], ignored: int | None
) -> tuple[float, float]:
    """The mean squared distance of a table's vectors to rows, and of the rows to their mean."""
    is_counted = torch.ones(rows.shape[0], dtype=torch.bool, device=rows.device)
    if ignored is not None:
        is_counted[ignored] = False
    ids = is_counted.nonzero().flatten()
    if not ids.numel():
        return 0.0, 0.0
    pieces = ids.split(_CHUNK_ROWS)
    mean = sum(rows[some].double().sum(dim=0) for some in pieces) / ids.numel()
    error = spread = 0.0
    for some in pieces:
        exact = rows[some].double()
        error += float((table(some).double() - exact).square().sum())
        spread += float((exact - mean).square().sum())
    return error / ids.numel(), spread / ids.numel()

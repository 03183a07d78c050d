"""The part that `Embedding` and `EmbeddingBag` share: a table behind torch's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import EmbeddingTable, ReclusterReport
from outsize.errors import BudgetError, ConfigError, DataError, NoWeightError
from outsize.nn.rows import PQ, require_method, table_from_rows
from outsize.spec import Budget, Init, MemoryUse, TableSpec
from outsize.tables import TABLES, FullTable, PackedCCETable, QuantizedTable, build_table

Device = torch.device | str | int | None
TORCH_INIT = Init("normal", std=1.0)  # what torch's embeddings start with


class TableModule(nn.Module):
    """A module over one table, with the attributes of torch's embeddings.

    Args:
        table: The table; several modules may share one.
        padding_idx: An id of the table, counted from its end if it is negative.

    Attributes:
        table: The table inside, an `EmbeddingTable`.
        method: The name of its method in `outsize.TABLES`, or "pq".
        num_embeddings: Number of ids.
        embedding_dim: Width of a vector.
        padding_idx: The id of padding, if there is one.
    """

    def __init__(self, table: EmbeddingTable, padding_idx: int | None) -> None:
        super().__init__()
        self.num_embeddings = table.spec.num_rows
        self.embedding_dim = table.spec.dim
        self.padding_idx = resolve_padding(padding_idx, self.num_embeddings)
        self.method = method_of(table)
        self.table = table
        self.max_norm: float | None = None
        self.norm_type = 2.0
        self.scale_grad_by_freq = False

    @property
    def sparse(self) -> bool:
        """Whether gradients are sparse; only a full table can have them."""
        return bool(getattr(self.table, "sparse", False))

    def recluster(
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        progress: bool = False,
    ) -> ReclusterReport | None:
        """Cluster the vectors of all ids and point similar ids to the same codes (CCE).

        Call it a few times during training, about twice, between `optimizer.step()` and the next
        forward pass, and train on for about the last half of the run. A method that does not
        cluster does nothing and returns `None`.

        The table's parameters keep their identity, so an optimizer goes on with them, but its
        moments belong to the old values: give the optimizer, and they are reset. Without it, make a
        new one. Modules that share a table are reclustered together, by one call.

        Args:
            optimizer: The torch optimizer that trains the table.
            counts: How often each id occurs; frequent ids then have more weight.
            progress: Show a progress bar on standard error.
        """
        return self.table.recluster(optimizer, counts, progress=progress)

    def memory_use(self) -> MemoryUse:
        """Memory of the table and, if there is one, of the padding row."""
        return MemoryUse.of({"parameters": self.parameters(), "index": self.buffers()})

    def raise_if_bad_ids(self) -> None:
        """Raise if an id out of range was flagged on CUDA; call it once per step."""
        self.table.raise_if_bad_ids()

    def extra_repr(self) -> str:
        """Sizes and padding as torch's embeddings show them, then the method."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, method={self.method!r}"

    def __getattr__(self, name: str) -> Any:
        """`weight` is the parameter of a full table; a compressed one has no such matrix."""
        if name == "weight":
            table = self._modules.get("table")
            if isinstance(table, FullTable):
                return table.weight
            raise NoWeightError(
                f"an outsize.nn.{type(self).__name__} with method {self.method!r} has no weight "
                "with a row per id: .table holds its parameters, and .materialize().weight "
                "computes all rows"
            )
        return super().__getattr__(name)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        """Load the weight of a torch embedding into a full table."""
        theirs = f"{prefix}weight"
        if theirs in state_dict and isinstance(self.table, FullTable):
            state_dict[f"{prefix}table.weight"] = state_dict.pop(theirs)
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)


def method_of(table: EmbeddingTable) -> str:
    """The name of a table's method, or of its class if that is not registered."""
    if isinstance(table, QuantizedTable):
        return PQ
    names = (name for name, kind in TABLES.items() if kind is type(table))
    return "cce" if isinstance(table, PackedCCETable) else next(names, type(table).__name__)


def ids_of(values: Tensor, what: str = "ids") -> Tensor:
    """Ids as int64, from the integers that torch's embeddings accept."""
    if values.dtype not in (torch.int32, torch.int64):
        raise DataError(f"{what} must be int32 or int64, but got {values.dtype}: use .long()")
    return values.long()


def require_matrix(rows: Tensor) -> None:
    """Raise unless rows are a matrix of floating-point numbers."""
    if rows.dim() != 2 or not rows.is_floating_point():
        raise DataError(
            "trained rows are a floating-point matrix, one row per id, but got the shape "
            f"{tuple(rows.shape)} of {rows.dtype}"
        )


def resolve_padding(padding_idx: int | None, num_embeddings: int) -> int | None:
    """The padding id as an id of the table; torch counts negative ones from the end."""
    if padding_idx is None:
        return None
    if not -num_embeddings <= padding_idx < num_embeddings:
        raise ConfigError(
            f"padding_idx must be between {-num_embeddings} and {num_embeddings - 1}, "
            f"but got {padding_idx}"
        )
    return padding_idx % num_embeddings


def require_honoured(
    where: str,
    max_norm: float | None,
    scale_grad_by_freq: bool,
    sparse: bool = False,
) -> None:
    """Raise if a setting of a torch embedding is on that ids which share parameters cannot keep."""
    if max_norm is not None:
        raise ConfigError(
            f"{where}: max_norm={max_norm:g} rescales the row of one id, but compressed ids share "
            "parameters: set max_norm=None, and clip gradients or norms in the model"
        )
    if scale_grad_by_freq:
        raise ConfigError(
            f"{where}: scale_grad_by_freq scales the gradient of one id, but compressed ids share "
            "parameters: set it to False"
        )
    if sparse:
        raise ConfigError(
            f"{where}: the gradients of a compressed table are dense: set sparse=False, and train "
            "it with an optimizer for dense gradients"
        )


def spec_of(
    name: str,
    num_embeddings: int,
    embedding_dim: int,
    init: Init | None,
    dtype: torch.dtype | None,
    rows: Tensor | None,
) -> TableSpec:
    """The spec of a module's table; by default it starts like torch's, normal with std 1."""
    if dtype is None:
        dtype = torch.get_default_dtype() if rows is None else rows.dtype
    spec = TableSpec(name, num_embeddings, embedding_dim, init or TORCH_INIT, dtype)
    if rows is not None and tuple(rows.shape) != (num_embeddings, embedding_dim):
        raise DataError(
            f"table {name!r}: expected rows of the shape {(num_embeddings, embedding_dim)}, "
            f"but got {tuple(rows.shape)}"
        )
    return spec


def budget_of_table(
    spec: TableSpec, max_params: int | None, max_bytes: int | None, padding_bytes: int
) -> Budget:
    """The budget of a table whose module has a padding row of its own, which counts as well."""
    if max_bytes is None:
        return Budget(max_params, None)
    if max_bytes <= padding_bytes:
        raise BudgetError(
            f"table {spec.name!r}: its padding row alone needs {padding_bytes:,} bytes, but the "
            f"budget is {max_bytes:,}: raise it"
        )
    return Budget(max_params, max_bytes - padding_bytes)


def make_table(
    method: str,
    spec: TableSpec,
    budget: Budget,
    *,
    rows: Float[Tensor, "num_rows dim"] | None = None,
    ignored: int | None = None,
    device: Device = None,
    seed: int | None = None,
    options: Mapping[str, Any],
) -> EmbeddingTable:
    """Make the table of a module, from trained rows if there are some.

    Args:
        method: A key of `outsize.TABLES`, or "pq" with rows.
        spec: The table.
        budget: The most it may cost.
        rows: Trained rows to start from.
        ignored: An id whose row need not be kept.
        device: Where the table is; by default where torch makes tensors, or where the rows are.
        seed: Seed of everything random; by default drawn from torch's global generator.
        options: The method's own settings.
    """
    require_method(method, from_rows=rows is not None)
    if seed is None:
        seed = int(torch.randint(2**63 - 1, (1,), device="cpu"))
    if rows is not None:
        rows = rows.to(device=device, dtype=spec.dtype)
        return table_from_rows(
            method, spec, rows, budget, seed=seed, ignored=ignored, options=options
        )
    is_meta = device is not None and torch.device(device).type == "meta"
    with torch.device("meta") if is_meta else nullcontext():
        table = build_table(
            method,
            spec,
            max_params=budget.max_params,
            max_bytes=budget.max_bytes,
            seed=seed,
            **options,
        )
    return table if device is None or is_meta else table.to(device)

"""The contract of a table: a module that maps ids to vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts.bags import Bag, Codes, pool_rows, require_poolable
from outsize.contracts.fitting import fit_by_gradient, require_counts
from outsize.contracts.ids import IdGuard
from outsize.contracts.recluster import PlannedRecluster, ReclusterReport
from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.spec import Budget, MemoryUse, Pooling, TableSpec

_MATERIALIZE_ROWS = 1 << 16
_NO_POINTERS = "its method keeps no pointers that could replace ids: give it the ids"


class EmbeddingTable(nn.Module, ABC):
    """Maps ids to vectors.

    A subclass implements `within` and `lookup`; shapes, bags, checks, memory use and export are
    derived from them. Trainable numbers are parameters and index maps are buffers, so `.to()`,
    `state_dict` and torch optimizers work as for any module.

    Attributes:
        spec: Name, size and initialization of the table.
        can_recluster: Whether the method implements `plan_recluster`.
        can_probe: Whether it can cluster by rows that ids are trained with on their own, see
            `outsize.Probe`.
        can_encode: Whether the method implements `encode` and `decode`.
        within_options: Settings that `within` takes beside those of the constructor.
    """

    can_recluster: ClassVar[bool] = False
    can_probe: ClassVar[bool] = False
    can_encode: ClassVar[bool] = False
    within_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: TableSpec) -> None:
        super().__init__()
        self.spec = spec
        self._guard = IdGuard({f"table {spec.name!r}": spec.num_rows})

    @classmethod
    @abstractmethod
    def within(
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> EmbeddingTable:
        """The largest table of this kind within a budget; sized without building one.

        Raises `ConfigError` if even the smallest table exceeds the budget.
        """

    def settings(self) -> dict[str, Any] | None:
        """The constructor's settings that build a table of this shape, as plain values.

        An exported model holds them with the table's state, in its compressed form. A method that
        returns `None`, as this one does, is exported as full rows instead.
        """
        return None

    @classmethod
    def from_settings(cls, spec: TableSpec, settings: Mapping[str, Any]) -> EmbeddingTable:
        """Build a table from what `settings` returned; its state is loaded afterwards."""
        return cls(spec, **settings)

    @abstractmethod
    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:
        """The vectors of flat ids; all ids are in range."""

    def recluster(
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        tolerance: float = 0.0,
        progress: bool = False,
    ) -> ReclusterReport | None:
        """Reassign ids to shared rows by clustering, if the method can; otherwise do nothing.

        If any rank raises, all raise, and no table changes.

        Args:
            optimizer: The optimizer of this table; the moments of rewritten rows are reset.
            counts: How often each id occurs, if known.
            tolerance: k-means also stops when an iteration lowers its error by no more than this
                share of it; 0 to go on until no assignment changes.
            progress: Whether to show a progress bar on standard error.
        """
        options = {"tolerance": tolerance} if tolerance else {}  # what older tables do not know
        plan = self.plan_recluster(optimizer, counts, progress=progress, **options)
        return None if plan is None else plan.apply()

    def plan_recluster(
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        tolerance: float = 0.0,
        progress: bool = False,
    ) -> PlannedRecluster | None:
        """Compute a reclustering without applying it, so that several tables can change together.

        A method that can recluster implements this. Arguments as for `recluster`.
        """
        return None

    @torch.no_grad()
    def fit_rows(
        self,
        rows: Float[Tensor, "rows width"],
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        progress: bool = False,
    ) -> None:
        """Set the parameters so that the vectors come as close to given rows as the method can.

        Args:
            rows: The vector that each id should have, such as a trained `nn.Embedding.weight`.
            counts: How often each id occurs; frequent ids are fitted more exactly, and ids that
                never occur do not take part.
            progress: Show a progress bar on standard error, if the method clusters.
        """
        self._require_rows(rows)
        if counts is not None:
            require_counts(self.spec, counts)
        device = next(self.parameters()).device
        self._fit(rows.detach().to(device), counts, progress)

    def _require_rows(self, rows: Float[Tensor, "rows width"]) -> None:
        """Raise if rows are not one finite vector for each id."""
        name, shape = f"table {self.spec.name!r}", (self.spec.num_rows, self.spec.dim)
        if tuple(rows.shape) != shape:
            raise DataError(
                f"{name}: expected rows of the shape {shape}, but got {tuple(rows.shape)}"
            )
        if not bool(torch.isfinite(rows).all()):
            raise NonFiniteError(
                f"{name}: the rows to fit hold NaN or infinity: replace them, or train again"
            )

    def _fit(
        self,
        rows: Float[Tensor, "num_rows dim"],
        counts: Int64[Tensor, " num_rows"] | None,
        progress: bool,
    ) -> None:
        """Fit rows that are checked and on the table's device; a method may have a better way."""
        fit_by_gradient(self, rows, counts)

    @property
    def codes_version(self) -> int:
        """A number that changes when the pointers change: older codes are then invalid.

        Absent where a method keeps no pointers.
        """
        raise AttributeError(_NO_POINTERS)  # torch.jit.trace asks for every attribute by hasattr

    def encode(self, ids: Int64[Tensor, "*shape"]) -> Codes:
        """Encode ids as pointers: several small integers per id, which can replace ids in data."""
        raise ConfigError(f"table {self.spec.name!r}: {_NO_POINTERS}")

    def decode(self, codes: Codes) -> Float[Tensor, "*shape dim"]:
        """The vectors of codes, without pooling; codes of another version raise."""
        raise ConfigError(f"table {self.spec.name!r}: {_NO_POINTERS}")

    def memory_use(self) -> MemoryUse:
        """Memory of this table: its parameters, and all buffers as index maps."""
        return MemoryUse.of({"parameters": self.parameters(), "index": self.buffers()})

    def forward(self, ids: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        """Look up ids of any shape, as `nn.Embedding` does."""
        if not isinstance(ids, Tensor):
            raise DataError(
                f"table {self.spec.name!r}: ids must be a tensor, but got a {type(ids).__name__}: "
                "use torch.as_tensor"
            )
        safe = self._guard(ids.reshape(-1, 1)).flatten()
        return self.lookup(safe).view(*ids.shape, self.spec.dim)

    def bag(
        self,
        values: Int64[Tensor, "..."],
        offsets: Int64[Tensor, " batch"] | None = None,
        weights: Float[Tensor, "..."] | None = None,
        pooling: Pooling = "sum",
        padding_id: int | None = None,
    ) -> Float[Tensor, "batch dim"]:
        """Pool bags of ids, as `nn.EmbeddingBag` does.

        Args:
            values: `(B, L)`, `(N,)` with `offsets`, or `(B,)` for bags of one id.
            offsets: `(B,)` start of each bag in flat values.
            weights: One factor per id; for sum pooling only.
            pooling: "sum", "mean" or "max".
            padding_id: An id that is ignored in every bag.
        """
        require_poolable(pooling, weights)
        bag = Bag(values, offsets, weights).flat(padding_id)
        assert bag.offsets is not None
        return pool_rows(self(bag.values), bag.offsets, pooling, bag.weights)

    def raise_if_bad_ids(self) -> None:
        """Raise if an id out of range was flagged on CUDA; call it once per step."""
        self._guard.raise_if_bad()

    @torch.no_grad()
    def materialize(self) -> nn.Embedding:
        """The vectors of all rows as a trainable `nn.Embedding`."""
        device = next(iter([*self.parameters(), *self.buffers()])).device
        pieces = [
            self.lookup(ids)
            for ids in torch.arange(self.spec.num_rows, device=device).split(_MATERIALIZE_ROWS)
        ]
        weight = torch.cat(pieces)
        embedding: nn.Embedding = nn.Embedding.from_pretrained(weight, freeze=False)
        return embedding

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EmbeddingTable:
        """Move or convert all tensors; if one fails, the table is unchanged."""
        tensors = [*self.parameters(recurse), *self.buffers(recurse)]
        tensors += [tensor.grad for tensor in tensors if tensor.grad is not None]
        with torch.no_grad():
            moved = {id(tensor): fn(tensor) for tensor in tensors}
        super()._apply(lambda tensor: moved[id(tensor)], recurse)
        parameter = next(self.parameters(), None)
        if parameter is not None and not parameter.is_meta:
            self._guard.prepare(parameter.device)
        return self

    def extra_repr(self) -> str:
        """Name and shape, for `print(model)`."""
        return f"{self.spec.name!r}, num_rows={self.spec.num_rows}, dim={self.spec.dim}"

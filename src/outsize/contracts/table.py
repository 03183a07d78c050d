"""The contract of a table: ids to vectors, however the rows are represented."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts.bags import Bag, Codes, pool_rows, require_poolable
from outsize.contracts.ids import IdGuard
from outsize.contracts.recluster import PlannedRecluster, ReclusterReport
from outsize.errors import ConfigError
from outsize.spec import Budget, MemoryUse, Pooling, TableSpec

_MATERIALIZE_ROWS = 1 << 16
_NO_POINTERS = "its method keeps no pointers that could stand for ids: give it the ids"


class EmbeddingTable(nn.Module, ABC):
    """Maps ids to vectors.

    A representation implements `within` and `lookup`; shapes, bags, checks, cost and export are
    derived here. Trainable numbers are parameters, index
    maps are buffers, so `.to()`, `state_dict` and torch's optimizers work as for any module.

    Attributes:
        spec: What the model asked for.
        can_recluster: Whether the method has a `recluster` of its own.
        can_encode: Whether it has pointers that can stand for ids: `encode` and `decode`.
    """

    can_recluster: ClassVar[bool] = False
    can_encode: ClassVar[bool] = False

    def __init__(self, spec: TableSpec) -> None:
        super().__init__()
        self.spec = spec
        self._guard = IdGuard({f"table {spec.name!r}": spec.num_rows})

    @classmethod
    @abstractmethod
    def within(
        cls, spec: TableSpec, budget: Budget, *, seed: int = 0, **options: Any
    ) -> EmbeddingTable:
        """The largest table of this kind that a budget allows, sized without building any.

        Raises `ConfigError` where even the smallest is too large.
        """

    @abstractmethod
    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:
        """The vectors of flat ids that are known to be in range."""

    def recluster(
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        progress: bool = False,
    ) -> ReclusterReport | None:
        """Find better rows for ids to share, where the method can; by default there are none.

        It changes the table on all ranks, or fails and changes it on none.

        Args:
            optimizer: What trains this table; it forgets the moments of what is rewritten.
            counts: How often each id occurs, where that is known.
            progress: Show a bar on standard error.
        """
        plan = self.plan_recluster(optimizer, counts, progress=progress)
        return None if plan is None else plan.apply()

    def plan_recluster(
        self,
        optimizer: Optimizer | None = None,
        counts: Int64[Tensor, " num_rows"] | None = None,
        *,
        progress: bool = False,
    ) -> PlannedRecluster | None:
        """All of `recluster` but the change, so that several tables change together or not at all.

        A method that can recluster implements this, with the arguments of `recluster`.
        """
        return None

    @property
    def codes_version(self) -> int:
        """Changes whenever codes that were made before would decode to other vectors."""
        raise ConfigError(f"table {self.spec.name!r}: {_NO_POINTERS}")

    def encode(self, ids: Int64[Tensor, "*shape"]) -> Codes:
        """What can stand in data in the place of ids: small integers, several for each id."""
        raise ConfigError(f"table {self.spec.name!r}: {_NO_POINTERS}")

    def decode(self, codes: Codes) -> Float[Tensor, "*shape dim"]:
        """The vectors of encoded ids, whatever their bags; codes of another version are refused."""
        raise ConfigError(f"table {self.spec.name!r}: {_NO_POINTERS}")

    def memory_use(self) -> MemoryUse:
        """What this table costs: its parameters, and every buffer as an index map."""
        return MemoryUse.of({"parameters": self.parameters(), "index": self.buffers()})

    def forward(self, ids: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        """Look up ids of any shape, as `nn.Embedding` does."""
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
            weights: A factor for each id; sum pooling only.
            pooling: "sum", "mean" or "max".
            padding_id: An id to leave out of every bag.
        """
        require_poolable(pooling, weights)
        bag = Bag(values, offsets, weights).flat(padding_id)
        assert bag.offsets is not None
        return pool_rows(self(bag.values), bag.offsets, pooling, bag.weights)

    def raise_if_bad_ids(self) -> None:
        """Report ids out of range that were flagged on CUDA; call once a step."""
        self._guard.raise_if_bad()

    @torch.no_grad()
    def materialize(self) -> nn.Embedding:
        """The same vectors as a plain, trainable `nn.Embedding` of all rows."""
        device = next(iter([*self.parameters(), *self.buffers()])).device
        pieces = [
            self.lookup(ids)
            for ids in torch.arange(self.spec.num_rows, device=device).split(_MATERIALIZE_ROWS)
        ]
        weight = torch.cat(pieces)
        embedding: nn.Embedding = nn.Embedding.from_pretrained(weight, freeze=False)
        return embedding

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EmbeddingTable:
        """Move or convert all tensors, or none: what fails midway leaves the table as it was."""
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

"""Embeddings whose reads are recorded: without rows, or with rows that are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.collection import EmbeddingCollection
from outsize.contracts import RowReply, RowStore, RowUpdate, TablePart
from outsize.initialization import initial_rows
from outsize.kernels.rows.updates import UpdateRule
from outsize.optimizers import RowOptimizer
from outsize.spec import FeatureSpec, MemoryUse, TableSpec
from outsize.stores import LocalStore
from outsize.training.embeddings_config import EmbeddingsConfig
from outsize.training.store_config import StoreConfig

VALUES_AT_ONCE = 1 << 15


class RowlessStore(RowStore):
    """Answers every read with the initial values of the rows, which it computes and never stores.

    Attributes:
        reads: Store ids of every training read, one tensor per read, ascending; the caller clears
            it.
        has_values: Whether values are computed; without them, which is faster, every row is zero.
    """

    has_values: bool = True

    def __init__(self, specs: Sequence[TableSpec], seed: int = 0) -> None:
        super().__init__(specs, seed)
        self.register_buffer("nothing", torch.empty(0), persistent=False)
        self.reads: list[Int64[Tensor, " _"]] = []

    def exchange(  # noqa: D102
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None = None,
    ) -> RowReply:
        rows = tuple(
            self._initial(run, group.dim, group.dtype)
            for run, group in zip(self.layout.split(ids), self.layout.groups, strict=True)
        )
        return RowReply(torch.ones_like(ids, dtype=torch.bool), rows, torch.zeros_like(ids))

    def checkout(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:  # noqa: D102
        self.reads.append(ids.cpu())
        return super().checkout(ids)

    def bind(self, rule: UpdateRule) -> None:  # noqa: D102
        self.rule = rule

    def parts(self) -> list[TablePart]:  # noqa: D102
        return []

    def memory_by_table(self) -> dict[str, MemoryUse]:  # noqa: D102
        return {spec.name: MemoryUse() for spec in self.layout.specs}

    def _initial(self, ids: Int64[Tensor, " n"], dim: int, dtype: torch.dtype) -> Tensor:
        """The initial values of the rows of one group, by ascending store ids.

        They are computed a few at a time: what that takes is memory that a run does not need.
        """
        if not self.has_values:
            return torch.zeros(1, dim, dtype=dtype, device=ids.device).expand(ids.shape[0], dim)
        rows = torch.empty(ids.shape[0], dim, dtype=dtype, device=ids.device)
        for spec in self.layout.specs:
            start = self.layout.offsets[spec.name]
            edges = torch.tensor([start, start + spec.num_rows], device=ids.device)
            first, stop = torch.searchsorted(ids, edges).tolist()
            step = max(1, VALUES_AT_ONCE // dim)
            for low in range(first, stop, step):
                few = slice(low, min(low + step, stop))
                rows[few] = initial_rows(spec, ids[few] - start, self.seed).to(dtype)
        return rows


@dataclass(frozen=True)
class RowlessConfig(EmbeddingsConfig):
    """Embeddings of a run that is planned: they take no memory, whatever the run's own would take.

    Attributes:
        dim: Width of a row.
        init_std: Standard deviation of initial values; `None` for the default.
    """

    dim: int = 16
    init_std: float | None = None

    def build(  # noqa: D102
        self, features: Sequence[FeatureSpec], specs: Sequence[TableSpec], seed: int
    ) -> EmbeddingCollection:
        return EmbeddingCollection(features, RowlessStore(specs, seed))

    def num_bytes(self, specs: Sequence[TableSpec], dense_state: int) -> int:  # noqa: D102
        return 0


class RecordedStore(LocalStore):
    """A local store that records what training reads.

    Attributes:
        reads: As those of a `RowlessStore`.
    """

    def __init__(self, specs: Sequence[TableSpec], seed: int = 0) -> None:
        super().__init__(specs, seed)
        self.reads: list[Int64[Tensor, " _"]] = []

    def checkout(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:  # noqa: D102
        self.reads.append(ids.cpu())
        return super().checkout(ids)


@dataclass(frozen=True)
class RecordedConfig(EmbeddingsConfig):
    """Embeddings that are trained for some steps, to see what a trained model reads.

    Attributes:
        store: The store of the run, for its width and its row optimizer.
    """

    store: StoreConfig

    @property
    def dim(self) -> int:  # type: ignore[override]
        """Width of a row."""
        return self.store.dim

    @property
    def init_std(self) -> float | None:  # type: ignore[override]
        """Standard deviation of initial values."""
        return self.store.init_std

    def build(  # noqa: D102
        self, features: Sequence[FeatureSpec], specs: Sequence[TableSpec], seed: int
    ) -> EmbeddingCollection:
        return EmbeddingCollection(features, RecordedStore(specs, seed))

    def build_row_optimizer(  # noqa: D102
        self, store: RowStore | None, **options: bool
    ) -> RowOptimizer | None:
        return self.store.build_row_optimizer(store, **options)

    def num_bytes(self, specs: Sequence[TableSpec], dense_state: int) -> int:  # noqa: D102
        return sum(spec.num_rows for spec in specs) * self.dim * 4

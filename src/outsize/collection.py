"""All features of a model in one call, over tables or over one store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import (
    Bag,
    Codes,
    EmbeddingTable,
    IdGuard,
    ReclusterReport,
    RowStore,
    pool_rows,
)
from outsize.contracts.bags import require_poolable
from outsize.errors import ConfigError, DataError
from outsize.spec import FeatureSpec, MemoryUse, TableSpec

FeatureInput = Tensor | tuple[Tensor, Tensor] | Bag | Codes


class EmbeddingCollection(nn.Module):
    """Looks up and pools every feature of a batch.

    Over tables each feature asks its table, and the tables' parameters are trained by any torch
    optimizer. Over a store the ids of all features become one list of distinct rows, read in one
    exchange; the rows are trained by a row optimizer such as `RowAdagrad(store)`.

    Args:
        features: What the model reads; several features may share a table.
        tables: Table name → table, or a store that holds all tables.

    Example:
        >>> spec = outsize.TableSpec("ad", num_rows=1000, dim=16)
        >>> store = outsize.LocalStore([spec])
        >>> emb = outsize.EmbeddingCollection([outsize.FeatureSpec("ad")], store)
        >>> emb({"ad": torch.tensor([3, 1, 3])})["ad"].shape
        torch.Size([3, 16])
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec],
        tables: Mapping[str, EmbeddingTable] | RowStore,
    ) -> None:
        super().__init__()
        self.features = tuple(features)
        self.tables: nn.ModuleDict | None = None
        self.store: RowStore | None = None
        if isinstance(tables, RowStore):
            self.store = tables
            self.specs = {spec.name: spec for spec in tables.layout.specs}
        else:
            self.specs = {name: table.spec for name, table in tables.items()}
            self.tables = nn.ModuleDict(dict(tables))
        self._require_features()
        self._guard = IdGuard(
            {f"feature {f.name!r}": self.spec_of(f).num_rows for f in self.features}
        )
        self._offsets: Tensor | None = None

    @property
    def num_features(self) -> int:
        """How many features, and so vectors, an example has."""
        return len(self.features)

    @property
    def dim(self) -> int:
        """The width all features share; an error where they differ."""
        dims = {f.name: self.spec_of(f).dim for f in self.features}
        if len(set(dims.values())) > 1:
            raise ConfigError(f"the features differ in width ({dims}), but one width is needed")
        return next(iter(dims.values()))

    def spec_of(self, feature: FeatureSpec) -> TableSpec:
        """The table a feature points to."""
        return self.specs[feature.table]

    def forward(self, inputs: Mapping[str, FeatureInput]) -> dict[str, Float[Tensor, "batch dim"]]:
        """Embed a batch.

        Args:
            inputs: For each feature `(B,)` ids, `(B, L)` bags, flat `(values, offsets)`, a `Bag`,
                or `Codes` where its table has pointers.

        Returns:
            For each feature its pooled vectors `(B, dim)`.
        """
        bags = self._bags(inputs)
        if self._is_one_id_each(bags):
            stacked = self._read_stacked(bags)
            return {f.name: stacked[:, i] for i, f in enumerate(self.features)}
        vectors = self._read_tables(bags) if self.store is None else self._read_store(bags)
        return {f.name: vector for f, vector in zip(self.features, vectors, strict=True)}

    def stacked(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "batch features dim"]:
        """Embed a batch into one tensor, features in the order of `self.features`."""
        bags = self._bags(inputs)
        _ = self.dim
        if self._is_one_id_each(bags):
            return self._read_stacked(bags)
        vectors = self._read_tables(bags) if self.store is None else self._read_store(bags)
        return torch.stack(vectors, dim=1)

    @torch.no_grad()
    def encode(self, inputs: Mapping[str, FeatureInput]) -> dict[str, Bag | Codes]:
        """The batch with pointers in the place of ids, for every table that has pointers.

        What comes out can be kept and given to the collection again, until a table is reclustered;
        padding is gone from it.
        """
        tables = self._each_table()
        encoded: dict[str, Bag | Codes] = {}
        for feature, bag in zip(self.features, self._bags(inputs), strict=True):
            table = tables.get(feature.table)
            if table is None or not table.can_encode or isinstance(bag, Codes):
                encoded[feature.name] = bag
                continue
            single = bag.is_one_id_each and feature.padding_id is None
            flat = bag if single else bag.flat(feature.padding_id)
            encoded[feature.name] = Codes(table.encode(flat.values), flat.offsets, flat.weights)
        return encoded

    def recluster(
        self,
        optimizer: Optimizer | None = None,
        counts: Mapping[str, Int64[Tensor, " num_rows"]] | None = None,
        *,
        progress: bool = False,
    ) -> dict[str, ReclusterReport]:
        """Recluster every table that can be.

        Args:
            optimizer: What trains the tables; it forgets the moments of what is rewritten.
            counts: For each table, how often each of its ids occurs, where that is known.
            progress: Show bars on standard error.

        Returns:
            The reports of the tables that were, by name.
        """
        known = counts or {}
        reports = {
            name: table.recluster(optimizer, known.get(name), progress=progress)
            for name, table in self._each_table().items()
        }
        return {name: report for name, report in reports.items() if report is not None}

    def raise_if_bad_ids(self) -> None:
        """Report ids out of range that were flagged on CUDA; call once a step."""
        self._guard.raise_if_bad()
        if self.store is not None:
            self.store.raise_if_bad_ids()
        for table in self._each_table().values():
            table.raise_if_bad_ids()

    def memory_use(self) -> MemoryUse:
        """What all tables cost together."""
        if self.store is not None:
            return self.store.memory_use()
        return sum((t.memory_use() for t in self._each_table().values()), MemoryUse())

    def memory_by_table(self) -> dict[str, MemoryUse]:
        """What each table costs."""
        if self.store is not None:
            return self.store.memory_by_table()
        return {name: table.memory_use() for name, table in self._each_table().items()}

    def _each_table(self) -> dict[str, EmbeddingTable]:
        found = {} if self.tables is None else dict(self.tables.items())
        return {name: table for name, table in found.items() if isinstance(table, EmbeddingTable)}

    def _require_features(self) -> None:
        if not self.features:
            raise ConfigError("a collection needs at least one feature, but got none")
        seen: set[str] = set()
        for feature in self.features:
            if feature.name in seen:
                raise ConfigError(f"two features are named {feature.name!r}")
            seen.add(feature.name)
            if feature.table not in self.specs:
                raise ConfigError(
                    f"feature {feature.name!r} points to table {feature.table!r}, but there are "
                    f"only {', '.join(sorted(self.specs))}"
                )

    def _bags(self, inputs: Mapping[str, FeatureInput]) -> list[Bag | Codes]:
        bags: list[Bag | Codes] = []
        for feature in self.features:
            if feature.name not in inputs:
                raise DataError(
                    f"the batch has no feature {feature.name!r}, but the model reads it"
                )
            given = inputs[feature.name]
            if isinstance(given, tuple):
                given = Bag(*given)
            bag = Bag(given) if isinstance(given, Tensor) else given
            if isinstance(bag, Codes) and self.store is not None:
                raise DataError(
                    f"feature {feature.name!r} has codes, but its rows live in a store: give ids"
                )
            require_poolable(feature.pooling, bag.weights)
            if bags and bag.batch_size != bags[0].batch_size:
                raise DataError(
                    f"feature {feature.name!r} has {bag.batch_size} examples, but "
                    f"{self.features[0].name!r} has {bags[0].batch_size}"
                )
            bags.append(bag)
        return bags

    def _is_one_id_each(self, bags: Sequence[Bag | Codes]) -> TypeGuard[Sequence[Bag]]:
        """Whether one gather serves all: a store of one width, and single, unweighted ids."""
        return (
            self.store is not None
            and len(self.store.layout.groups) == 1
            and all(f.padding_id is None for f in self.features)
            and all(isinstance(bag, Bag) and bag.is_one_id_each for bag in bags)
        )

    def _read_stacked(self, bags: Sequence[Bag]) -> Float[Tensor, "batch features dim"]:
        assert self.store is not None
        ids = self._guard(torch.stack([bag.values for bag in bags], dim=1))
        if self._offsets is None or self._offsets.device != ids.device:
            offsets = [self.store.layout.offsets[f.table] for f in self.features]
            self._offsets = torch.tensor(offsets, device=ids.device)
        unique, inverse = torch.unique(ids + self._offsets, return_inverse=True)
        (rows,) = self._rows(self.store, unique)
        return rows.index_select(0, inverse.flatten()).view(*ids.shape, rows.shape[1])

    def _read_store(self, bags: Sequence[Bag | Codes]) -> list[Float[Tensor, "batch dim"]]:
        assert self.store is not None
        layout = self.store.layout
        flat = [
            bag.flat(f.padding_id)
            for f, bag in zip(self.features, bags, strict=True)
            if isinstance(bag, Bag)  # `_bags` lets no codes through to a store
        ]
        ids = [
            self.store.guard(f.table, bag.values) + layout.offsets[f.table]
            for f, bag in zip(self.features, flat, strict=True)
        ]
        unique, inverse = torch.unique(torch.cat(ids), return_inverse=True)
        groups = self._rows(self.store, unique)
        sizes = layout.group_sizes(unique)
        vectors: list[Tensor] = []
        positions = inverse.split([part.shape[0] for part in ids])
        for feature, bag, position in zip(self.features, flat, positions, strict=True):
            group = layout.group_of(feature.table)
            rows = groups[group].index_select(0, position - sum(sizes[:group]))
            assert bag.offsets is not None
            vectors.append(pool_rows(rows, bag.offsets, feature.pooling, bag.weights))
        return vectors

    def _read_tables(self, bags: Sequence[Bag | Codes]) -> list[Float[Tensor, "batch dim"]]:
        tables = self._each_table()
        vectors: list[Tensor] = []
        for feature, bag in zip(self.features, bags, strict=True):
            table = tables[feature.table]
            if isinstance(bag, Codes):
                vector = table.decode(bag.values)
                if bag.offsets is not None:
                    vector = pool_rows(vector, bag.offsets, feature.pooling, bag.weights)
                vectors.append(vector)
            elif bag.is_one_id_each and feature.padding_id is None:
                vectors.append(table(bag.values))
            else:
                vectors.append(
                    table.bag(
                        bag.values, bag.offsets, bag.weights, feature.pooling, feature.padding_id
                    )
                )
        return vectors

    def _rows(self, store: RowStore, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:
        if self.training and torch.is_grad_enabled():
            return store.checkout(ids)
        return tuple(rows.float() for rows in store.peek(ids))

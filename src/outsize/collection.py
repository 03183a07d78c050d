"""`EmbeddingCollection`: look up all features of a model in one call, from tables or a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from outsize.contracts import (
    Bag,
    Codes,
    EmbeddingTable,
    FeatureSelection,
    ReclusterReport,
    RowStore,
    pool_rows,
)
from outsize.contracts.features import FeatureInput as FeatureInput
from outsize.contracts.store_reading import read_columns, read_features, read_ids
from outsize.errors import ConfigError, DataError, IdError
from outsize.kernels.distinct.distinct import distinct
from outsize.spec import FeatureSpec, MemoryUse, TableSpec
from outsize.suggestions import few


class EmbeddingCollection(nn.Module):
    """Looks up and pools every feature of a batch.

    With tables, each feature is looked up in its table, and any torch optimizer trains the tables'
    parameters. With a store, the distinct ids of all features are read in one exchange, and a row
    optimizer such as `RowAdagrad(store)` trains the rows.

    Args:
        features: The features of the model; several may share a table.
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
        everything = FeatureSelection(self.features, self.specs)
        self._selections: dict[tuple[str, ...] | None, FeatureSelection] = {None: everything}

    @property
    def num_features(self) -> int:
        """Number of features, and so of vectors per example."""
        return len(self.features)

    @property
    def dim(self) -> int:
        """The width that all features share; raises a `ConfigError` if they differ."""
        dims = {f.name: self.spec_of(f).dim for f in self.features}
        if len(set(dims.values())) > 1:
            raise ConfigError(f"the features differ in width ({dims}), but one width is needed")
        return next(iter(dims.values()))

    def spec_of(self, feature: FeatureSpec) -> TableSpec:
        """The spec of the table that a feature points to."""
        return self.specs[feature.table]

    def forward(
        self, inputs: Mapping[str, FeatureInput], only: Sequence[str] | None = None
    ) -> dict[str, Float[Tensor, "batch dim"]]:
        """Embed a batch.

        A step may embed several batches, such as queries and then items. A row that occurs in more
        than one of them gets the sum of its gradients and one update.

        Args:
            inputs: For each feature `(B,)` ids, `(B, L)` bags, flat `(values, offsets)`, a `Bag`,
                or `Codes` if its table can encode ids.
            only: Names of the features to read, the same on all ranks; all by default. With none,
                nothing is read.

        Returns:
            The pooled vectors `(B, dim)` of each feature.
        """
        selection = self._selection(only)
        found = self._read(inputs, selection)
        vectors = found.unbind(1) if isinstance(found, Tensor) else found
        return {f.name: vector for f, vector in zip(selection.features, vectors, strict=True)}

    def ragged(
        self, inputs: Mapping[str, FeatureInput], only: Sequence[str] | None = None
    ) -> dict[str, Float[Tensor, "_ dim"]]:
        """Embed features that have different numbers of examples, in one exchange.

        As `forward`, but feature f has B_f examples and gets `(B_f, dim)` vectors; so the nodes of
        a graph with several types are read at once.
        """
        selection = self._selection(only)
        found = self._read(inputs, selection, allow_ragged=True)
        vectors = found.unbind(1) if isinstance(found, Tensor) else found
        return {f.name: vector for f, vector in zip(selection.features, vectors, strict=True)}

    def stacked(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "batch features dim"]:
        """Embed a batch into one tensor, with features in the order of `self.features`."""
        _ = self.dim  # raises if the features differ in width
        found = self._read(inputs, self._selection(None))
        return found if isinstance(found, Tensor) else torch.stack(found, dim=1)

    @torch.no_grad()
    def prefetch(
        self, inputs: Mapping[str, FeatureInput], only: Sequence[str] | None = None
    ) -> None:
        """Say which batch will be read, if the store reads rows one batch ahead.

        Arguments as for `forward`, which then finds the rows of this batch already read. Batches
        are read in the order in which they were prefetched, the same on all ranks. An invalid batch
        raises when it is read. With other stores and with tables, nothing is done.
        """
        store = self.store
        if store is None or not store.reads_ahead:
            return
        selection = self._selection(only)
        if not selection.features:
            return
        try:
            bags = selection.bags(inputs, allow_codes=False, allow_ragged=True)
            lists = read_ids(store, bags, selection)
        except (DataError, IdError) as error:
            store.fail_ahead(error)
            return
        found = [distinct(ids, store.layout.num_rows).ids for ids in lists]
        store.prefetch(torch.cat(found))

    @torch.no_grad()
    def encode(self, inputs: Mapping[str, FeatureInput]) -> dict[str, Bag | Codes]:
        """Replace the ids of a batch by codes, for every table that can encode ids.

        The result can be stored and passed to the collection later. Once a table is reclustered,
        its old codes are refused. Padding is removed.
        """
        tables = self._each_table()
        encoded: dict[str, Bag | Codes] = {}
        bags = self._selection(None).bags(inputs, allow_codes=self.store is None)
        for feature, bag in zip(self.features, bags, strict=True):
            table = tables.get(feature.table)
            if table is None or not table.can_encode or isinstance(bag, Codes):
                encoded[feature.name] = bag
                continue
            single = bag.is_one_id_each and feature.padding_id is None
            flat = bag if single else bag.flat(feature.padding_id)
            codes = table.encode(flat.values)
            encoded[feature.name] = replace(codes, offsets=flat.offsets, weights=flat.weights)
        return encoded

    def recluster(
        self,
        optimizer: Optimizer | None = None,
        counts: Mapping[str, Int64[Tensor, " num_rows"]] | None = None,
        *,
        tolerance: float = 0.0,
        progress: bool = False,
    ) -> dict[str, ReclusterReport]:
        """Recluster every table that supports it. If any fails on any rank, none is changed.

        Args:
            optimizer: The optimizer that trains the tables; its state for rewritten rows is reset.
            counts: For each table, how often each of its ids occurs, if known.
            tolerance: k-means also stops when an iteration lowers its error by no more than this
                share of it; 0 to go on until no assignment changes.
            progress: Show progress bars on standard error.

        Returns:
            The reports of the reclustered tables, by name.
        """
        known, tables = counts or {}, self._each_table()
        options: dict[str, Any] = {"progress": progress}
        if tolerance:  # tables of users may not know it
            options["tolerance"] = tolerance
        plans = {
            name: table.plan_recluster(optimizer, known.get(name), **options)
            for name, table in tables.items()
        }
        reports: dict[str, ReclusterReport | None] = {}
        for name, table in tables.items():
            plan = plans[name]
            if plan is not None:
                reports[name] = plan.apply()
            else:  # a user's table may implement `recluster` alone
                reports[name] = table.recluster(optimizer, known.get(name), **options)
        return {name: report for name, report in reports.items() if report is not None}

    def raise_if_bad_ids(self) -> None:
        """Raise an `IdError` for ids out of range that were flagged on CUDA; call once per step."""
        for selection in self._selections.values():
            selection.guard.raise_if_bad()
        if self.store is not None:
            self.store.raise_if_bad_ids()
        for table in self._each_table().values():
            table.raise_if_bad_ids()

    def memory_use(self) -> MemoryUse:
        """The memory use of all tables together."""
        if self.store is not None:
            return self.store.memory_use()
        return sum((t.memory_use() for t in self._each_table().values()), MemoryUse())

    def memory_by_table(self) -> dict[str, MemoryUse]:
        """The memory use of each table."""
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
                    f"only {few(sorted(self.specs), feature.table)}"
                )

    def _selection(self, only: Sequence[str] | None) -> FeatureSelection:
        names = None if only is None else tuple(only)
        if names not in self._selections:
            by_name = {feature.name: feature for feature in self.features}
            for name in names or ():
                if name not in by_name:
                    raise ConfigError(f"no feature {name!r}; there are {few(by_name, name)}")
            chosen = [by_name[name] for name in names or ()]
            self._selections[names] = FeatureSelection(chosen, self.specs)
        return self._selections[names]

    def _read(
        self,
        inputs: Mapping[str, FeatureInput],
        selection: FeatureSelection,
        allow_ragged: bool = False,
    ) -> Float[Tensor, "batch features dim"] | list[Float[Tensor, "batch dim"]]:
        """The vectors of features: one tensor if one gather is enough, or one per feature."""
        if not selection.features:
            return []
        trains = self.training and torch.is_grad_enabled()
        with self._failing_on_all_ranks():
            if self.store is not None and self.store.layout.is_one_group:
                columns = selection.columns(inputs)
                if columns is not None:
                    return read_columns(self.store, columns, selection, trains)
            bags = selection.bags(inputs, allow_codes=self.store is None, allow_ragged=allow_ragged)
            if self.store is None:
                return self._read_tables(bags, selection.features)
            return read_features(self.store, bags, selection, trains)

    def _read_tables(
        self, bags: Sequence[Bag | Codes], features: Sequence[FeatureSpec]
    ) -> list[Float[Tensor, "batch dim"]]:
        tables = self._each_table()
        vectors: list[Tensor] = []
        for feature, bag in zip(features, bags, strict=True):
            table = tables[feature.table]
            if isinstance(bag, Codes):
                vector = table.decode(bag)
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

    @contextmanager
    def _failing_on_all_ranks(self) -> Iterator[None]:
        """If any rank has an invalid batch, all raise; otherwise the others would hang."""
        try:
            yield
        except (DataError, IdError):
            if self.store is not None:
                self.store.fail()
            raise

"""Look-ups of features in a store: all rows of a batch are read at once, each row once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts.bags import Bag, Codes, is_sum, joined_bags, pool_features
from outsize.contracts.features import FeatureSelection
from outsize.contracts.fused import FusedRows
from outsize.contracts.store import RowStore
from outsize.errors import ConfigError
from outsize.kernels.distinct.distinct import distinct, offset_ids
from outsize.kernels.gather.gather import gather
from outsize.spec import FeatureSpec


def read_features(
    store: RowStore, bags: Sequence[Bag | Codes], selection: FeatureSelection, trains: bool
) -> Float[Tensor, "batch features dim"] | list[Float[Tensor, "batch dim"]]:
    """The vectors of features: one tensor if one gather is enough, or one per feature.

    Args:
        store: The rows.
        bags: The ids of each feature, as `FeatureSelection.bags` returns them.
        selection: The features.
        trains: Whether rows are read for training, which counts, or only looked at.
    """
    if _is_one_id_each(bags, store, selection):
        return read_columns(store, [bag.values for bag in bags], selection, trains)
    return _read_bags(store, _flat_bags(bags, selection.features), selection.features, trains)


def read_ids(
    store: RowStore, bags: Sequence[Bag | Codes], selection: FeatureSelection
) -> list[Int64[Tensor, " _"]]:
    """The checked store ids that `read_features` reads, in lists by group."""
    if _is_one_id_each(bags, store, selection):
        return [_ids_by_example(store, [bag.values for bag in bags], selection)]
    return _ids_by_group(store, _flat_bags(bags, selection.features), selection.features)[1]


def read_columns(
    store: RowStore,
    columns: Sequence[Int64[Tensor, " batch"]],
    selection: FeatureSelection,
    trains: bool,
) -> Float[Tensor, "batch features dim"]:
    """The vectors of features with one id per example, from a store of one width.

    Args:
        store: The rows.
        columns: The ids of each feature.
        selection: The features.
        trains: As for `read_features`.
    """
    shape = (columns[0].shape[0], len(columns))
    if trains and (fused := store.fused) is not None:
        limits = _limits(store, columns, selection)
        vectors = fused.look_up_columns(columns, *limits, selection.guard)
        if vectors is None:
            (lines,) = fused.look_up([_ids_by_example(store, columns, selection)], [None])
            vectors = lines.view(*shape, lines.shape[1])
        return vectors
    found = distinct(_ids_by_example(store, columns, selection), store.layout.num_rows)
    (rows,) = _rows(store, found.ids, trains)
    return gather(rows, found).view(*shape, rows.shape[1])


def _is_one_id_each(
    bags: Sequence[Bag | Codes], store: RowStore, selection: FeatureSelection
) -> TypeGuard[Sequence[Bag]]:
    """Whether one gather is enough: a store of one width, and single, unweighted ids."""
    return (
        store.layout.is_one_group
        and not selection.has_padding
        and all(isinstance(bag, Bag) and bag.is_one_id_each for bag in bags)
        and len({bag.batch_size for bag in bags}) == 1
    )


def _ids_by_example(
    store: RowStore, columns: Sequence[Int64[Tensor, " batch"]], selection: FeatureSelection
) -> Int64[Tensor, " _"]:
    """The checked store ids of all features of the first example, then of the second, and so on."""
    bounds, offsets = _limits(store, columns, selection)
    rows_of = offset_ids(columns, bounds, offsets)
    if rows_of is not None:
        return rows_of
    return (selection.guard(torch.stack(list(columns), dim=1)) + offsets).flatten()


def _limits(
    store: RowStore, columns: Sequence[Int64[Tensor, " batch"]], selection: FeatureSelection
) -> tuple[Int64[Tensor, " features"], Int64[Tensor, " features"]]:
    """Number of rows of each feature's table, and the store id of its row 0."""
    device = columns[0].device
    return selection.guard.prepare(device), selection.offsets(store.layout, device)


def _read_bags(
    store: RowStore, flat: Sequence[Bag], features: Sequence[FeatureSpec], trains: bool
) -> list[Float[Tensor, "batch dim"]]:
    members, together = _ids_by_group(store, flat, features)
    if trains and (fused := store.fused) is not None:
        return _fused_vectors(fused, features, flat, members, together)
    # Store ids ascend group by group, so the distinct ids of the groups are in order.
    found = [distinct(part, store.layout.num_rows) for part in together]
    rows = _rows(store, torch.cat([part.ids for part in found]), trains)
    vectors: dict[int, Tensor] = {}
    for group, part, own in zip(members, found, rows, strict=True):
        pooled = pool_features(
            own, part, [flat[i] for i in group], [features[i].pooling for i in group]
        )
        vectors.update(zip(group, pooled, strict=True))
    return [vectors[i] for i in range(len(features))]


def _ids_by_group(
    store: RowStore, bags: Sequence[Bag], features: Sequence[FeatureSpec]
) -> tuple[list[list[int]], list[Int64[Tensor, " _"]]]:
    """The features of each group of the store, and their checked store ids."""
    layout = store.layout
    members: list[list[int]] = [[] for _ in layout.groups]
    for index, feature in enumerate(features):
        members[layout.group_of(feature.table)].append(index)
    ids = [
        store.guard(f.table, bag.values) + layout.offsets[f.table]
        for f, bag in zip(features, bags, strict=True)
    ]
    return members, [torch.cat([ids[i] for i in group] or [ids[0][:0]]) for group in members]


def _rows(
    store: RowStore, ids: Int64[Tensor, " n"], trains: bool
) -> tuple[Float[Tensor, "_ _"], ...]:
    return store.checkout(ids) if trains else tuple(rows.float() for rows in store.peek(ids))


def _flat_bags(bags: Sequence[Bag | Codes], features: Sequence[FeatureSpec]) -> list[Bag]:
    """The bags of features without padding; with a store, there are no codes."""
    return [
        bag.flat(f.padding_id)
        for f, bag in zip(features, bags, strict=True)
        if isinstance(bag, Bag)  # `FeatureSelection.bags` refuses codes
    ]


def _fused_vectors(
    fused: FusedRows,
    features: Sequence[FeatureSpec],
    bags: Sequence[Bag],
    members: Sequence[Sequence[int]],
    ids: Sequence[Int64[Tensor, " _"]],
) -> list[Float[Tensor, "batch dim"]]:
    """The pooled vectors of features whose rows are updated in the backward pass.

    Args:
        fused: Looks up the rows.
        features: The features.
        bags: Flat bags of each feature.
        members: The features of each group.
        ids: Store ids of each group.
    """
    for feature, bag in zip(features, bags, strict=True):
        if not is_sum(bag, feature.pooling):
            raise ConfigError(
                f"feature {feature.name!r}: fused rows are pooled by sum or mean, without trained "
                "weights: make the row optimizer with fused=False"
            )
    joined = [
        joined_bags([bags[i] for i in own], [features[i].pooling for i in own]) if own else None
        for own in members
    ]
    found: dict[int, Tensor] = {}
    for own, lines in zip(members, fused.look_up(ids, joined), strict=True):
        if own:
            vectors = lines.split([bags[i].batch_size for i in own])
            found.update(zip(own, vectors, strict=True))
    return [found[i] for i in range(len(features))]

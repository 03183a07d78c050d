"""From raw values to what models read: one code path for training and for serving.

A `RowEncoder` turns checked rows into dense features and ids. Encoding a data set applies it in the
second pass; an exported model brings its own and applies it to new rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.contracts import Bag
from outsize.data.click_data import ClickBatch
from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.ids import (
    Bags,
    HashedIds,
    IdEncoder,
    KeyedIds,
    ModulusIds,
    VocabularyIds,
    row_ids,
)
from outsize.data.encoding.moments import Moments, SignedLogMoments
from outsize.data.encoding.recipe import Recipe, feature_name
from outsize.data.encoding.text_keys import Column, text_keys

Found = Callable[[str, NDArray[np.int64], Column], None]
"""Told of the ids of a column's distinct values: column, ids, values."""
_FEW_ROWS = 1024


@dataclass(frozen=True)
class EncodedRows:
    """Rows as dense features and ids.

    Attributes:
        labels: 0 or 1, `(n,)`.
        dense: `(n, num_dense)`.
        ids: The ids of features with one value per row, `(n, num_categorical)`.
        bags: Feature with several values per row → ids of all rows concatenated, and their number
            per row.
    """

    labels: NDArray[np.uint8]
    dense: NDArray[np.float32]
    ids: NDArray[Any]
    bags: dict[str, tuple[NDArray[Any], NDArray[np.int64]]]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.labels)

    def take(self, rows: NDArray[np.bool_] | slice) -> EncodedRows:
        """The rows selected by a mask or a slice."""
        mask = np.zeros(len(self), bool)
        mask[rows] = True
        bags = {
            name: (values[np.repeat(mask, lengths)], lengths[mask])
            for name, (values, lengths) in self.bags.items()
        }
        return EncodedRows(self.labels[rows], self.dense[rows], self.ids[rows], bags)

    @classmethod
    def concatenate(cls, parts: Sequence[EncodedRows]) -> EncodedRows:
        """The rows of several parts in order; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        bags = {
            name: (
                np.concatenate([part.bags[name][0] for part in parts]),
                np.concatenate([part.bags[name][1] for part in parts]),
            )
            for name in parts[0].bags
        }
        return cls(
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.dense for part in parts]),
            np.concatenate([part.ids for part in parts]),
            bags,
        )


class RowEncoder:
    """Encodes rows as a recipe says, with what was learned from the training data.

    Args:
        recipe: The columns and how they are transformed.
        encoders: Column of ids → how its values become ids.
        moments: Column that is standardized → its mean and deviation.
    """

    def __init__(
        self,
        recipe: Recipe,
        encoders: Mapping[str, IdEncoder],
        moments: Mapping[str, Moments],
    ) -> None:
        self.recipe = recipe
        self.encoders = dict(encoders)
        self.moments = dict(moments)

    def encode(
        self, rows: Rows, id_type: Any = np.int64, found: Found | None = None
    ) -> EncodedRows:
        """Encode rows.

        Args:
            rows: Rows that passed all checks.
            id_type: The integer type of ids.
            found: Told of the ids of distinct values.
        """
        recipe = self.recipe
        ids = np.empty((len(rows), len(recipe.categorical)), id_type)
        keys = self._keys_of(rows) if len(rows) <= _FEW_ROWS else {}
        for place, name in enumerate(recipe.categorical):
            text = rows.texts[name]
            ids[:, place] = row_ids(text, self._ids_of(name, text.values, found, keys.get(name)))
        bags = {}
        for name in recipe.multi_valued:
            split = Bags.split(rows.texts[name], recipe.separator, recipe.max_length)
            values, lengths = split.rows(self._ids_of(name, split.tokens.values, found))
            bags[feature_name(name)] = (values.astype(id_type), lengths)
        return EncodedRows(rows.labels, self._dense(rows), ids, bags)

    def batch(self, rows: EncodedRows) -> ClickBatch:
        """Encoded rows as tensors, by the names that models know the features by."""
        ids: dict[str, torch.Tensor | Bag] = {}
        columns = np.array(rows.ids.T, np.int64, order="C")
        for place, name in enumerate(self.recipe.categorical):
            ids[feature_name(name)] = torch.from_numpy(columns[place])
        for name, (values, lengths) in rows.bags.items():
            offsets = np.cumsum(lengths) - lengths
            ids[name] = Bag(torch.from_numpy(values.astype(np.int64)), torch.from_numpy(offsets))
        labels = torch.from_numpy(rows.labels.astype(np.float32))
        return ClickBatch(torch.from_numpy(rows.dense), ids, labels)

    def _keys_of(self, rows: Rows) -> dict[str, NDArray[np.uint64]]:
        """The keys of all columns that have any, in one call: for few rows, calls are the cost."""
        import pyarrow as pa

        names = [n for n in self.recipe.categorical if isinstance(self.encoders[n], KeyedIds)]
        if not names:
            return {}
        columns = [rows.texts[name].values for name in names]
        keys = text_keys(pa.concat_arrays(columns))
        edges = np.cumsum([len(column) for column in columns])[:-1]
        return dict(zip(names, np.split(keys, edges), strict=True))

    def _ids_of(
        self,
        name: str,
        values: Column,
        found: Found | None,
        keys: NDArray[np.uint64] | None = None,
    ) -> NDArray[np.int64]:
        encoder = self.encoders[name]
        if keys is not None and isinstance(encoder, KeyedIds):
            ids = encoder.ids_of_keys(keys)
        else:
            ids = encoder.ids_of(values)
        if found is not None:
            found(name, ids, values)
        return ids

    def _dense(self, rows: Rows) -> NDArray[np.float32]:
        recipe = self.recipe
        dense = np.zeros((len(rows), len(recipe.dense_columns)), np.float32)
        for place, name in enumerate(recipe.dense_columns):
            numbers = rows.numbers[name]
            if name in recipe.log1p:
                numbers = np.log1p(np.maximum(numbers, 0.0))
            elif name in self.moments:
                numbers = self.moments[name].standardize(numbers)
            dense[:, place] = np.where(np.isnan(numbers), 0.0, numbers)
        return dense


def make_encoders(recipe: Recipe) -> dict[str, IdEncoder]:
    """The encoders of a recipe's columns; vocabularies are empty at first."""
    encoders: dict[str, IdEncoder] = {}
    wanted = recipe.vocabulary
    moduli = recipe.modulus * (len(recipe.categorical) if len(recipe.modulus) == 1 else 1)
    for place, name in enumerate(recipe.id_columns):
        if moduli and name in recipe.categorical:
            encoders[name] = ModulusIds(moduli[place])
        elif name in wanted.hashed:
            encoders[name] = HashedIds(name, wanted.num_buckets)
        else:
            encoders[name] = VocabularyIds(wanted.min_count, wanted.max_ids)
    return encoders


def make_moments(
    recipe: Recipe, saved: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, Moments]:
    """The moments of a recipe's columns: those that were saved, or else of no values."""
    kinds: dict[str, type[Moments]] = dict.fromkeys(recipe.standardize, Moments)
    kinds |= dict.fromkeys(recipe.signed_log, SignedLogMoments)
    return {name: kind(*(() if saved is None else saved[name])) for name, kind in kinds.items()}


def regroup(parts: Iterable[EncodedRows], size: int) -> Iterator[EncodedRows]:
    """The same rows in groups of `size`; the last may be smaller."""
    held: list[EncodedRows] = []
    num_held = 0
    for part in parts:
        held.append(part)
        num_held += len(part)
        if num_held < size:
            continue
        whole = EncodedRows.concatenate(held)
        first = 0
        while num_held - first >= size:
            yield whole.take(slice(first, first + size))
            first += size
        held, num_held = [whole.take(slice(first, None))], num_held - first
    if num_held:
        yield EncodedRows.concatenate(held)

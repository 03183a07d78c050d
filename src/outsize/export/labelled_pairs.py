"""Files of pairs that a retrieval model is measured on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.export.pairs import ItemNames, PairFiles, good_pairs, query_keys

if TYPE_CHECKING:
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.entity_encoder import EntityEncoder


@dataclass(frozen=True)
class LabelledPairs:
    """The pairs of a file, with the features of their distinct queries.

    Attributes:
        keys: The key of each distinct query.
        names: Their raw ids.
        features: Their features.
        queries: The query of each pair, as a place in `keys`.
        items: The item of each pair, as a row.
        bad: The malformed rows, which were skipped.
    """

    keys: NDArray[np.uint64]
    names: list[str]
    features: dict[str, Tensor]
    queries: Tensor
    items: Tensor
    bad: BadRows


def read_pairs(
    path: Path,
    files: PairFiles,
    encoder: EntityEncoder,
    items: ItemNames,
    advance: Callable[[str, int], None] = lambda text, count: None,
) -> LabelledPairs:
    """Read a labelled file; held are two numbers per pair, and each query with its features once.

    The features of a query come from its first row, as in training. Rows with an unknown item, or
    with an unknown query where queries are known by their ids, are malformed.
    """
    from outsize.data.encoding.bad_rows import BadRows

    bad, found = BadRows(), _Found()
    for rows, numbers in good_pairs(
        path, files, files.recipe(encoder, positives=True), bad, advance
    ):
        text = rows.texts[files.item]
        wanted = items.rows_of(text.values)[text.codes]
        unknown = wanted < 0
        if unknown.any():
            place = int(np.flatnonzero(unknown)[0])
            kind = f"a value of {files.item!r} that the training data does not have"
            shown = f"{str(text.values[int(text.codes[place])])!r:.60}"
            bad.add(kind, int(unknown.sum()), f"{path} row {numbers[place]:,}: {shown}")
        rows, numbers, wanted = rows.take(~unknown), numbers[~unknown], wanted[~unknown]
        features, is_known = encoder.encode(rows, numbers, bad, f"{path} ")
        rows = rows.take(is_known)
        queries = rows.texts[files.query]
        names = [str(queries.values[code]) if code >= 0 else "" for code in queries.codes.tolist()]
        found.add(query_keys(rows, files.query), names, wanted[is_known], features)
    return found.result(bad)


class _Found:
    """Pairs so far; a query's features are kept once."""

    def __init__(self) -> None:
        self._number_of: dict[int, int] = {}
        self._names: list[str] = []
        self._queries: list[NDArray[np.int64]] = []
        self._items: list[NDArray[np.int64]] = []
        self._features: dict[str, list[Tensor]] = {}

    def add(
        self,
        keys: NDArray[np.uint64],
        names: Sequence[str],
        items: NDArray[np.int64],
        features: Mapping[str, Tensor],
    ) -> None:
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first)  # numbered by first appearance
        numbers = np.zeros(len(distinct), np.int64)
        new: list[int] = []
        for place in order.tolist():
            key = int(distinct[place])
            if key not in self._number_of:
                self._number_of[key] = len(self._number_of)
                new.append(int(first[place]))
                self._names.append(names[new[-1]])
            numbers[place] = self._number_of[key]
        self._queries.append(numbers[inverse.reshape(-1)])
        self._items.append(items)
        rows = torch.tensor(new, dtype=torch.int64)
        for name, values in features.items():
            self._features.setdefault(name, []).append(values[rows])

    def result(self, bad: BadRows) -> LabelledPairs:
        empty = [np.zeros(0, np.int64)]
        return LabelledPairs(
            np.array(list(self._number_of), np.uint64),
            self._names,
            {name: _joined(parts) for name, parts in self._features.items()},
            torch.from_numpy(np.concatenate(self._queries or empty)),
            torch.from_numpy(np.concatenate(self._items or empty)),
            bad,
        )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate values, or bags of different widths padded with −1."""
    if parts[0].dim() == 1:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    pad = torch.nn.functional.pad
    return torch.cat([pad(part, (0, width - part.shape[1]), value=-1) for part in parts])

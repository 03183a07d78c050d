"""From judged pairs of texts to the splits of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.data.click_data import SPLITS
from outsize.data.encoding.splits.base import TEST, TRAIN, VALIDATION
from outsize.data.encoding.text_keys import text_keys
from outsize.data.texts.text_pairs import TextPairs, Texts
from outsize.errors import DataError
from outsize.hashing import derive_seed, mix_bits, uniform_at


@dataclass(frozen=True)
class Judgements:
    """Pairs of a query and an item, as rows of both.

    Attributes:
        queries: The query of each pair.
        items: The item of each pair.
        grades: How relevant it is; 0 and less is not relevant.
        splits: 0 (train), 1 (validation) or 2 (test) for each; −1 leaves a pair out.
    """

    queries: NDArray[np.int64]
    items: NDArray[np.int64]
    grades: NDArray[np.int64]
    splits: NDArray[np.int8]

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Judgements:
        """Some of the pairs."""
        return Judgements(
            self.queries[chosen], self.items[chosen], self.grades[chosen], self.splits[chosen]
        )


def assemble(
    queries: Texts,
    items: Texts,
    judged: Judgements,
    source: str,
    validation: float,
    seed: int,
    notes: tuple[str, ...] = (),
) -> TextPairs:
    """The pairs of each split, with the queries that have any.

    Without a validation set, a share of the training queries is taken for it, by a hash of their
    ids. Without a test set, the validation set is used for both.

    Args:
        queries: All queries.
        items: The corpus.
        judged: The pairs.
        source: Where they are from, for messages.
        validation: Share of the training queries.
        seed: Seed of the hash.
        notes: What is already known to be left out.
    """
    judged = distinct_pairs(judged.take((judged.grades > 0) & (judged.splits >= 0)))
    if not (judged.splits == TRAIN).any():
        raise DataError(f"{source}: there is no training pair, so there is nothing to learn from")
    if not (judged.splits == VALIDATION).any():
        judged = _take_validation(judged, queries, source, validation, seed)
    asked = np.unique(judged.queries)
    if num_left := len(queries) - len(asked):
        notes += (f"{num_left:,} of {len(queries):,} queries have no relevant item: left out",)
    rows = np.full(len(queries), -1)
    rows[asked] = np.arange(len(asked))
    pairs, grades = {}, {}
    for number, split in enumerate(SPLITS):
        own = judged.take(judged.splits == number)
        pairs[split] = (torch.from_numpy(rows[own.queries]), torch.from_numpy(own.items))
        grades[split] = torch.from_numpy(own.grades)
    if not (judged.splits == TEST).any():
        notes += ("there is no test set: the validation set is used for both",)
        pairs["test"], grades["test"] = pairs["validation"], grades["validation"]
    return TextPairs(_taken(queries, asked), items, pairs, grades, notes)


def distinct_pairs(judged: Judgements) -> Judgements:
    """Each pair once per split, in the order of first occurrence; the highest grade counts."""
    pairs = (judged.queries << 32) | judged.items  # fits: queries are below 2²⁹, items below 2³¹
    keys = pairs * len(SPLITS) + judged.splits if len(pairs) else pairs
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    highest = np.zeros(len(first), np.int64)
    np.maximum.at(highest, place, judged.grades)
    return replace(judged.take(first), grades=highest).take(np.argsort(first))


def _take_validation(
    judged: Judgements, queries: Texts, source: str, share: float, seed: int
) -> Judgements:
    keys = text_keys(queries.ids).view(np.int64)
    mixed = mix_bits(torch.from_numpy(keys) + derive_seed(seed, "validation"))
    is_chosen = (uniform_at(mixed, torch.float64).numpy() < share)[judged.queries]
    splits = np.where((judged.splits == TRAIN) & is_chosen, VALIDATION, judged.splits)
    if not (splits == VALIDATION).any() or not (splits == TRAIN).any():
        raise DataError(
            f"{source}: {share:g} of the training queries leave no query to train on, or none to "
            "validate with: change validation"
        )
    return Judgements(judged.queries, judged.items, judged.grades, splits.astype(np.int8))


def _taken(texts: Texts, rows: NDArray[np.int64]) -> Texts:
    import pyarrow as pa

    chosen = pa.array(rows)
    facts = {name: values.take(chosen) for name, values in texts.facts.items()}
    return Texts(texts.ids.take(chosen), texts.texts.take(chosen), facts)

"""Queries and items as texts, with the pairs of both: what every source of texts reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Int64
from torch import Tensor

from outsize.data.click_data import SPLITS, Split
from outsize.data.encoding.text_keys import Column
from outsize.data.retrieval_data import Pairs


@dataclass(frozen=True)
class Texts:
    """Texts with their ids.

    Attributes:
        ids: The id of each, a pyarrow array of strings without repetitions.
        texts: The texts, likewise; none is empty.
        facts: What else is known of each, such as its "file" and "line"; shown with results.
    """

    ids: Column = field(repr=False)
    texts: Column = field(repr=False)
    facts: Mapping[str, Column] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class TextPairs:
    """Queries, a corpus of items, and pairs of both in three splits.

    Attributes:
        queries: The queries, each with a relevant item in some split.
        items: The corpus.
        pairs: For each split, the row of the query and of the item of each pair.
        grades: For each split, how relevant the item of each pair is, from 1 on; 1 throughout where
            the source has no grades.
        notes: What was left out, in words, a line each.
        min_grades: The smallest grade of a relevant item in a split, where it is not 1. Pairs of
            lower grades count for NDCG only.
    """

    queries: Texts
    items: Texts
    pairs: Mapping[Split, Pairs]
    grades: Mapping[Split, Int64[Tensor, " _"]]
    notes: tuple[str, ...] = ()
    min_grades: Mapping[Split, int] = field(default_factory=dict)

    @property
    def is_graded(self) -> bool:
        """Whether some item is more relevant than another."""
        return any(bool((self.grades[split] > 1).any()) for split in SPLITS)

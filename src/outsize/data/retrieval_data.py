"""Data for retrieval: pairs of a query and an item, and the features of both."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.data.click_data import SPLITS, Split, rank_parts
from outsize.data.entity_encoder import EntityEncoder
from outsize.data.item_lists import ItemLists
from outsize.data.shuffle import BLOCK_ROWS, BlockShuffle
from outsize.errors import DataError
from outsize.kernels.ragged import Ragged
from outsize.spec import FeatureSpec, Pooling

Pairs = tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]


@dataclass(frozen=True)
class PairBatch:
    """A batch of pairs.

    Attributes:
        queries: The features of the queries: `(B,)` ids, `(B, L)` bags padded with −1, or `(B,)`
            numbers.
        query_rows: The query of each pair, as a row of the queries.
        items: The item of each pair, as a row of the corpus.
        num_global: Number of pairs of this batch over all ranks.
    """

    queries: Mapping[str, Tensor]
    query_rows: Int64[Tensor, " batch"]
    items: Int64[Tensor, " batch"]
    num_global: int

    def take(self, rows: Int64[Tensor, " n"]) -> PairBatch:
        """The pairs in the given rows."""
        queries = {name: values.index_select(0, rows) for name, values in self.queries.items()}
        return PairBatch(queries, self.query_rows[rows], self.items[rows], rows.numel())


@dataclass(frozen=True)
class Entities:
    """All queries, or all items, with their features.

    Attributes:
        num_rows: Number of queries or items.
        features: Feature → `(num_rows,)` ids, `(num_rows, L)` bags padded with −1, or
            `(num_rows,)` numbers.
        vocabularies: Feature → number of ids; features that are not in it are numbers.
        names: The raw id of each, a pyarrow array of strings, for data that has raw values.
        encoder: How raw values become these features, likewise.
    """

    num_rows: int
    features: Mapping[str, Tensor] = field(repr=False)
    vocabularies: Mapping[str, int]
    names: Any = field(default=None, repr=False)
    encoder: EntityEncoder | None = field(default=None, repr=False)

    def take(self, rows: Int64[Tensor, " n"]) -> dict[str, Tensor]:
        """The features of the given rows."""
        return {name: values.index_select(0, rows) for name, values in self.features.items()}

    def to(self, device: torch.device) -> Entities:
        """The same on a device."""
        moved = {name: values.to(device) for name, values in self.features.items()}
        return replace(self, features=moved)


class RetrievalDataConfig(ABC):
    """The configuration of a source of retrieval data; `build` makes the source."""

    task: ClassVar[str] = "retrieval"
    holds_texts: ClassVar[bool] = False
    """Whether queries and items are texts, which only a model that reads texts can encode."""

    @abstractmethod
    def build(self) -> RetrievalData:
        """Open or generate the data."""

    def memory_needs(self) -> dict[str, int]:
        """The memory that `build` needs, in bytes per part; empty if unknown."""
        return {}


class RetrievalData:
    """Queries, the corpus of items, and pairs of both in three splits, all in memory.

    A query without a training pair is *cold*: it stays in the data but is not evaluated, unless
    queries are described by more than their id (`evaluate_cold`). A held-out
    pair that is also a training pair (or, in the test, a validation pair) is not evaluated either:
    known items are left out of rankings.

    Args:
        queries: The queries.
        items: The corpus.
        pairs: For each split, the query and the item of each pair.
        pooling: How bags are pooled.
        shuffle: Whether training pairs come in a different order each epoch.
        seed: Seed of the shuffling.
        evaluate_cold: Whether queries without a training pair are evaluated.

    Attributes:
        item_counts: How often each item occurs in training pairs.
        num_cold_queries: Queries without a training pair.
        tokenizer: What made tokens of texts, which the model takes over; `None` without texts.
        item_texts: The `Texts` of items, likewise.
        notes: What was left out or cut, in words, a line each.
    """

    tokenizer: Any = None
    item_texts: Any = None
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        queries: Entities,
        items: Entities,
        pairs: Mapping[Split, Pairs],
        pooling: Pooling = "mean",
        shuffle: bool = True,
        seed: int = 0,
        evaluate_cold: bool = False,
    ) -> None:
        _require_sound(queries, items, pairs)
        self.queries, self.items = queries, items
        self._pairs = dict(pairs)
        self._pooling: Pooling = pooling
        num_train = self.num_pairs("train")
        # One window over all blocks: pairs are in memory, so reads need not be close together.
        window = max(1, -(-num_train // BLOCK_ROWS))
        self._order = BlockShuffle(num_train, seed, window_blocks=window) if shuffle else None
        num = queries.num_rows
        train = ItemLists(*pairs["train"], num)
        is_cold = train.counts() == 0
        self.item_counts = torch.bincount(pairs["train"][1], minlength=items.num_rows)
        self._known: dict[Split, ItemLists] = {"train": train, "validation": train, "test": train}
        if not _equal(pairs["validation"], pairs["test"]):  # one set may be used for both
            self._known["test"] = train.joined(ItemLists(*pairs["validation"], num))
        self._relevant: dict[Split, ItemLists] = {"train": train}
        for split in SPLITS[1:]:
            asked, wanted = pairs[split]
            new = ~self._known[split].contains(asked, wanted)
            if not evaluate_cold:
                new &= ~is_cold[asked]
            self._relevant[split] = ItemLists(asked[new], wanted[new], num)
        self.num_cold_queries = int(is_cold.sum())
        self._digest = self._hash()

    @property
    def vocabularies(self) -> dict[str, int]:
        """Feature → number of ids; features of queries come first."""
        return {**self.queries.vocabularies, **self.items.vocabularies}

    @property
    def features(self) -> Sequence[FeatureSpec]:
        """The categorical features in order, each with its own table."""
        columns = {**self.queries.features, **self.items.features}
        return tuple(
            FeatureSpec(name)
            if columns[name].dim() == 1
            else FeatureSpec(name, pooling=self._pooling, padding_id=-1)
            for name in self.vocabularies
        )

    @property
    def fingerprint(self) -> str:
        """A fingerprint that changes with the data; a run only resumes on the same data."""
        return self._digest

    def num_pairs(self, split: Split) -> int:
        """Number of pairs in a split, including repeated ones."""
        return self._pairs[split][0].shape[0]

    def num_batches(self, split: Split, batch_size: int) -> int:
        """Number of batches in one pass over a split."""
        return -(-self.num_pairs(split) // batch_size)

    def batches(
        self,
        split: Split,
        batch_size: int,
        *,
        epoch: int = 0,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[PairBatch]:
        """Iterate over a split once, yielding this rank's part of each batch from `start` on.

        As in `ClickData.batches`, the ranks together see the same batches as a single process. The
        last batch may be smaller, and a rank's part of it may be empty.
        """
        parts = rank_parts(self.num_pairs(split), batch_size, start, rank, world_size)
        for low, high, size in parts:
            yield replace(self.pairs(split, low, high, epoch), num_global=size)

    def pairs(self, split: Split, low: int, high: int, epoch: int = 0) -> PairBatch:
        """Pairs `low … high − 1` of a split, in the order of an epoch."""
        asked, wanted = self._pairs[split]
        if split == "train" and self._order is not None:
            chosen = torch.from_numpy(self._order.rows(low, high, epoch)).to(asked.device)
            asked, wanted = asked[chosen], wanted[chosen]
        else:
            asked, wanted = asked[low:high], wanted[low:high]
        return PairBatch(self.queries.take(asked), asked, wanted, high - low)

    def known_items(
        self, query_rows: Int64[Tensor, " batch"], max_known: int | None = None
    ) -> Ragged:
        """The training items of queries, or only the first `max_known` of each."""
        return self._known["train"].of(query_rows, max_known)

    def known(self, split: Split) -> ItemLists:
        """The items to leave out of each query's ranking when a split is evaluated."""
        return self._known[split]

    def relevant(self, split: Split) -> ItemLists:
        """The relevant items of each query when a split is evaluated."""
        return self._relevant[split]

    def grades(self, split: Split) -> Int64[Tensor, " n"] | None:
        """How relevant each item of `relevant(split)` is, by its `values`; `None` if all alike."""
        return None

    def min_grade(self, split: Split) -> int:
        """The smallest grade of a relevant item; NDCG counts lower ones too."""
        return 1

    def count_ids(self) -> dict[str, Int64[Tensor, " _"]]:
        """How often each id of each feature occurs in training pairs."""
        asked, wanted = self._pairs["train"]
        counts: dict[str, Tensor] = {}
        for side, rows in ((self.queries, asked), (self.items, wanted)):
            for name, size in side.vocabularies.items():
                values = side.features[name].index_select(0, rows)
                counts[name] = torch.bincount(values[values >= 0], minlength=size).cpu()
        return counts

    def to(self, device: torch.device) -> RetrievalData:
        """The same data on a device."""
        moved = copy.copy(self)
        moved.queries, moved.items = self.queries.to(device), self.items.to(device)
        moved.item_counts = self.item_counts.to(device)
        moved._pairs = {
            split: (asked.to(device), wanted.to(device))
            for split, (asked, wanted) in self._pairs.items()
        }
        moved._known = {split: lists.to(device) for split, lists in self._known.items()}
        moved._relevant = {split: lists.to(device) for split, lists in self._relevant.items()}
        return moved

    def _hash(self) -> str:
        digest = hashlib.sha256()
        for name, values in {**self.queries.features, **self.items.features}.items():
            size = self.vocabularies.get(name, "numbers")
            digest.update(f"{name} {size} {tuple(values.shape)}".encode())
            digest.update(values.contiguous().numpy().data)
        for split in SPLITS:
            for part in self._pairs[split]:
                digest.update(f"{split} {part.shape[0]}".encode())
                digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()


def _equal(one: Pairs, other: Pairs) -> bool:
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _require_sound(queries: Entities, items: Entities, pairs: Mapping[Split, Pairs]) -> None:
    for name in queries.features:
        if name in items.features:
            raise DataError(
                f"feature {name!r} is one of queries and of items: a column describes the one or "
                "the other"
            )
    for split in SPLITS:
        if not pairs[split][0].shape[0]:
            raise DataError(f"no pair is left for the {split} split: look at the split and filters")

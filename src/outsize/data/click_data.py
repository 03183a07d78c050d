"""The interface of sources of click data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from outsize.contracts import Bag
from outsize.interrupts import check_stop
from outsize.spec import FeatureSpec

if TYPE_CHECKING:
    from outsize.data.encoding.row_encoder import RowEncoder

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
_CHUNK_EXAMPLES, _MAX_CHUNKS = 1 << 14, 1 << 9  # 8 million examples


def rank_parts(
    total: int, batch_size: int, start: int, rank: int, world_size: int
) -> Iterator[tuple[int, int, int]]:
    """A rank's part of each batch from number `start` on: its edges, and the size of the batch."""
    for first in range(start * batch_size, total, batch_size):
        size = min(batch_size, total - first)
        low, high = (first + size * r // world_size for r in (rank, rank + 1))
        yield low, high, size


@dataclass(frozen=True)
class ClickBatch:
    """A batch of examples.

    Attributes:
        dense: Numeric features.
        ids: Categorical features by name: `(B,)` ids or bags.
        labels: 0 or 1.
        probability: The true probability of label 1, if known.
        num_global: Examples of this batch over all ranks; by default those of this rank.
        buffer: The bytes of all of these, if they are one `ClickLayout`.
    """

    dense: Float[Tensor, "batch num_dense"]
    ids: Mapping[str, Tensor | Bag]
    labels: Float[Tensor, " batch"]
    probability: Float[Tensor, " batch"] | None = None
    num_global: int = -1
    buffer: UInt8[Tensor, " bytes"] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.num_global < 0:
            object.__setattr__(self, "num_global", self.num_examples)

    @property
    def num_examples(self) -> int:
        """Number of examples of this rank."""
        return self.labels.shape[0]

    def slice(self, first: int, stop: int) -> ClickBatch:
        """Examples `first … stop − 1` of a batch of plain ids, without copying."""
        part = slice(first, stop)
        return ClickBatch(
            self.dense[part],
            {name: ids[part] for name, ids in self.ids.items() if isinstance(ids, Tensor)},
            self.labels[part],
            None if self.probability is None else self.probability[part],
        )

    def take(self, rows: Int64[Tensor, " n"]) -> ClickBatch:
        """The examples in the given rows."""
        ids = {
            name: value.take(rows) if isinstance(value, Bag) else value.index_select(0, rows)
            for name, value in self.ids.items()
        }
        probability = None if self.probability is None else self.probability.index_select(0, rows)
        dense, labels = (x.index_select(0, rows) for x in (self.dense, self.labels))
        return ClickBatch(dense, ids, labels, probability)

    def to(self, device: torch.device | str) -> ClickBatch:
        """The batch on another device."""

        def move(value: Tensor | Bag) -> Tensor | Bag:
            if isinstance(value, Tensor):
                return value.to(device, non_blocking=True)
            return value.to(device)

        return replace(
            self,
            dense=self.dense.to(device, non_blocking=True),
            ids={name: move(value) for name, value in self.ids.items()},
            labels=self.labels.to(device, non_blocking=True),
            probability=None if self.probability is None else self.probability.to(device),
            buffer=None,
        )


class ClickDataConfig(ABC):
    """The configuration of a source of click data; `build` makes the source."""

    task: ClassVar[str] = "click"

    @abstractmethod
    def build(self) -> ClickData:
        """Open or generate the data."""

    def memory_needs(self) -> dict[str, int]:
        """The memory that `build` needs, in bytes per part; empty if unknown."""
        return {}


class ClickData(ABC):
    """A source of click data: three splits that can be read in batches from any position.

    Attributes:
        num_dense: Number of dense features.
        vocabularies: Categorical feature → number of ids.
    """

    num_dense: int
    vocabularies: Mapping[str, int]

    @abstractmethod
    def num_examples(self, split: Split) -> int:
        """Number of examples in a split."""

    @abstractmethod
    def examples(self, split: Split, first: int, stop: int, epoch: int = 0) -> ClickBatch:
        """Examples `first … stop − 1` of a split, in the order of an epoch.

        The same arguments always give the same examples.
        """

    def batches(
        self,
        split: Split,
        batch_size: int,
        *,
        epoch: int = 0,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[ClickBatch]:
        """Iterate over a split once, yielding this rank's part of each batch from `start` on.

        Batches are divided evenly among the ranks, so that together they see the same batches as a
        single process. The last batch may be smaller, and a rank's part of it may be empty.

        Args:
            split: The split to read.
            batch_size: Examples per batch, over all ranks.
            epoch: The epoch; it may determine the order of the training examples.
            start: Number of the first batch.
            rank: This rank.
            world_size: Number of ranks.
        """
        parts = rank_parts(self.num_examples(split), batch_size, start, rank, world_size)
        for low, high, size in parts:
            yield replace(self.examples(split, low, high, epoch), num_global=size)

    def count_ids(self, num_examples: int) -> dict[str, Int64[Tensor, " num_ids"]]:
        """How often each id of each feature occurs in the first training examples.

        If there are very many examples, counts come from evenly spaced chunks and are relative.

        Args:
            num_examples: Number of examples, in the order of the first epoch.
        """
        counts = {
            name: torch.zeros(size, dtype=torch.int64) for name, size in self.vocabularies.items()
        }
        num_chunks = -(-num_examples // _CHUNK_EXAMPLES)
        step = max(1.0, num_chunks / _MAX_CHUNKS)
        for i in range(min(num_chunks, _MAX_CHUNKS)):
            check_stop()
            first = int(i * step) * _CHUNK_EXAMPLES
            batch = self.examples("train", first, min(first + _CHUNK_EXAMPLES, num_examples))
            for name, ids in batch.ids.items():
                flat = ids if isinstance(ids, Tensor) else ids.values
                counts[name] += torch.bincount(flat.flatten().cpu(), minlength=len(counts[name]))
        return counts

    def to(self, device: torch.device) -> ClickData:
        """The same source, generating batches on a device if it supports that; most do not."""
        return self

    def num_batches(self, split: Split, batch_size: int) -> int:
        """Number of batches in one pass over a split."""
        return -(-self.num_examples(split) // batch_size)

    @property
    def fingerprint(self) -> str:
        """A fingerprint that changes with the data; a run only resumes on the same data."""
        return ""

    def row_encoder(self) -> RowEncoder | None:
        """How raw values become the inputs of a model, for data that has raw values.

        An exported model takes it along, and so can score raw rows.
        """
        return None

    @property
    def features(self) -> Sequence[FeatureSpec]:
        """The categorical features in order, each with its own table."""
        return tuple(FeatureSpec(name) for name in self.vocabularies)

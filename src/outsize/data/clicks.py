"""What a source of click data promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from outsize.contracts import Bag

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class ClickBatch:
    """A batch of examples.

    Attributes:
        dense: Numeric features.
        ids: Categorical features by name: `(B,)` ids or bags.
        labels: 0 or 1.
        probability: The true probability of label 1, where it is known.
    """

    dense: Float[Tensor, "batch num_dense"]
    ids: Mapping[str, Tensor | Bag]
    labels: Float[Tensor, " batch"]
    probability: Float[Tensor, " batch"] | None = None

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return self.labels.shape[0]

    def to(self, device: torch.device | str) -> ClickBatch:
        """The batch on another device."""

        def move(value: Tensor | Bag) -> Tensor | Bag:
            if isinstance(value, Tensor):
                return value.to(device, non_blocking=True)
            moved = (
                part if part is None else part.to(device)
                for part in (value.values, value.offsets, value.weights)
            )
            return Bag(*moved)  # type: ignore[arg-type]

        return replace(
            self,
            dense=self.dense.to(device, non_blocking=True),
            ids={name: move(value) for name, value in self.ids.items()},
            labels=self.labels.to(device, non_blocking=True),
            probability=None if self.probability is None else self.probability.to(device),
        )


class ClickDataConfig(ABC):
    """The configuration of a source; it makes the source."""

    @abstractmethod
    def build(self) -> ClickData:
        """Open, or make up, the data."""


class ClickData(ABC):
    """A source of click data: three splits, read in batches, from any position.

    Attributes:
        num_dense: Width of the dense features.
        vocabularies: Categorical feature → number of ids.
    """

    num_dense: int
    vocabularies: Mapping[str, int]

    @abstractmethod
    def num_examples(self, split: Split) -> int:
        """Examples in one pass over a split."""

    @abstractmethod
    def batches(
        self, split: Split, batch_size: int, *, epoch: int = 0, start: int = 0
    ) -> Iterator[ClickBatch]:
        """Batches of one pass over a split, beginning with batch number `start`.

        The same (split, batch_size, epoch) always gives the same batches, so a resumed run
        continues exactly where it stopped. The last batch may be smaller.
        """

    def num_batches(self, split: Split, batch_size: int) -> int:
        """Batches in one pass over a split."""
        return -(-self.num_examples(split) // batch_size)

    @property
    def features(self) -> Sequence[str]:
        """Names of the categorical features, in order."""
        return tuple(self.vocabularies)

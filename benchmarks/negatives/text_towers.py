"""Small text towers for simulations: bags of hashed words, trained with in-batch negatives."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BETA = 20.0
_NUM_WORDS, _DIM, _LONGEST = 1 << 16, 64, 96
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class Bags:
    """Texts as bags of hashed words.

    Attributes:
        words: The words of all texts.
        offsets: The start of each text.
    """

    words: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, texts: Sequence[str]) -> Bags:
        """The words of texts, hashed; at most the first 96 of each."""
        lists = [
            [zlib.crc32(word.encode()) % _NUM_WORDS for word in _WORD.findall(text.lower())]
            for text in texts
        ]
        lists = [words[:_LONGEST] for words in lists]
        sizes = torch.tensor([0, *(len(words) for words in lists)])
        return cls(torch.tensor([w for words in lists for w in words]), sizes.cumsum(0))

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The words and the offsets of some texts."""
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        sizes = ends - starts
        offsets = sizes.cumsum(0) - sizes
        inside = torch.arange(int(sizes.sum()))
        places = inside + torch.repeat_interleave(starts - offsets, sizes)
        return self.words[places], offsets


class Tower(nn.Module):
    """The mean of word vectors and a residual layer, normalized.

    Args:
        words: Word vectors, shared by both towers.
    """

    def __init__(self, words: nn.EmbeddingBag) -> None:
        super().__init__()
        self.words = words
        self.inner = nn.Linear(_DIM, 2 * _DIM)
        self.outer = nn.Linear(2 * _DIM, _DIM)

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        """Bags → unit vectors."""
        mean = self.words(words, offsets)
        return F.normalize(mean + self.outer(F.gelu(self.inner(mean))), dim=1)


class TextTowers(nn.Module):
    """A tower for queries and one for items."""

    def __init__(self) -> None:
        super().__init__()
        words = nn.EmbeddingBag(_NUM_WORDS, _DIM, mode="mean", sparse=True)
        nn.init.normal_(words.weight, std=_DIM**-0.5)
        self.queries, self.items = Tower(words), Tower(words)

    def encode(self, tower: Tower, bags: Bags, rows: Tensor) -> Tensor:
        """The vectors of some texts, without gradients."""
        with torch.no_grad():
            return torch.cat([tower(*bags.take(part)) for part in rows.split(8192)])


@dataclass(frozen=True)
class Texts:
    """Pairs of a query and an item, row by row.

    Attributes:
        queries: The queries.
        items: The items.
        is_train: Whether a pair may be trained on.
    """

    queries: Bags
    items: Bags
    is_train: Tensor

    @classmethod
    def read(cls, path: Path, query: str, item: str, limit: int | None) -> Texts:
        """Pairs of two columns of a Parquet file with a column `split`, or some of them."""
        import numpy as np
        import pyarrow.parquet as parquet

        table = parquet.read_table(path, columns=[query, item, "split"])
        if limit is not None and limit < len(table):
            table = table.take(np.linspace(0, len(table) - 1, limit).astype(np.int64))
        split = table["split"].to_pylist()
        return cls(
            Bags.of(table[query].to_pylist()),
            Bags.of(table[item].to_pylist()),
            torch.tensor([name == "train" for name in split]),
        )

    @property
    def num_items(self) -> int:
        """Items in the corpus."""
        return len(self.is_train)


@dataclass(frozen=True)
class Lesson:
    """One stretch of training.

    Attributes:
        rows: The pairs to train on.
        steps: Steps.
        learning_rate: Of Adam.
    """

    rows: Tensor
    steps: int
    learning_rate: float


def train_versions(
    texts: Texts, lessons: Sequence[Lesson], seed: int, batch_size: int = 256
) -> Iterator[TextTowers]:
    """One model that goes on learning: itself after each lesson."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TextTowers()
    generator = torch.Generator().manual_seed(seed)
    words = model.queries.words.weight
    others = [value for value in model.parameters() if value is not words]
    optimizers = [torch.optim.SparseAdam([words]), torch.optim.Adam(others)]
    for lesson in lessons:
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = lesson.learning_rate
        for _ in range(lesson.steps):
            drawn = torch.randint(len(lesson.rows), (batch_size,), generator=generator)
            rows = lesson.rows[drawn]
            queries = model.queries(*texts.queries.take(rows))
            items = model.items(*texts.items.take(rows))
            loss = F.cross_entropy(BETA * queries @ items.T, torch.arange(batch_size))
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        yield model

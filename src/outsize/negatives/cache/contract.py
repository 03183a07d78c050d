"""What a cache of items promises, whether one process keeps it or several ranks share it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.contracts import Shard
from outsize.kernels.ragged import Ragged
from outsize.negatives.cache.draw import Draw, HeldItems
from outsize.ranks.collectives import RankGroup
from outsize.spec import MemoryUse

UNKNOWN_PUSHED = 1 << 62  # of a cache that was saved before pushed items were counted


@dataclass(frozen=True)
class PushReport:
    """What became of pushed items, of all ranks together.

    Attributes:
        num_new: Items that took a row.
        num_known: Items the cache held already, now rewritten where they were.
        num_repeated: Items pushed twice in the call (the last counts), or beyond the cache's size.
    """

    num_new: int
    num_known: int
    num_repeated: int


class ItemCache(nn.Module, ABC):
    """Items with their stale embeddings, which queries draw from.

    Only `push`, `commit` and `rewrite` change what is held. Where several ranks share a cache, all
    of them enter `push`, `sample`, `commit`, `rewrite` and `resume` together, also one that has
    nothing to give; everything else stays on its rank.

    Attributes:
        num_items: The most items held, by all ranks together.
        dim: Width of an embedding.
        corpus_size: How many items there are in all, where the cache holds a uniform sample.
        shard: Which keys are kept here: every `count`-th, from `index` on.
        ranks: Those that share it; `None` for a cache of one rank.
    """

    num_items: int
    dim: int
    corpus_size: int | None
    shard: Shard
    ranks: RankGroup | None = None

    @property
    @abstractmethod
    def clock(self) -> int:
        """Commits so far."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where items are kept."""

    @property
    @abstractmethod
    def num_held(self) -> int:
        """Items held now, by all ranks together."""

    @property
    @abstractmethod
    def num_held_here(self) -> int:
        """Items that this rank holds."""

    @property
    @abstractmethod
    def num_items_here(self) -> int:
        """The most items that this rank holds."""

    @property
    @abstractmethod
    def num_pushed(self) -> int:
        """Items pushed so far, by all ranks together and repeated ones included.

        `UNKNOWN_PUSHED` and more for a cache that was saved before this was counted.
        """

    @property
    def alpha(self) -> float:
        """The share of the corpus that is held, 1 for a cache of all of it."""
        return 1.0 if self.corpus_size is None else self.num_held / self.corpus_size

    def own_keys(self, num_keys: int) -> range:
        """Those of the keys 0 … num_keys − 1 whose items are kept here."""
        return range(self.shard.index, num_keys, self.shard.count)

    @abstractmethod
    def ages(self) -> Int64[Tensor, " held"]:
        """Commits since each item held here was encoded."""

    @abstractmethod
    def memory_use(self) -> MemoryUse:
        """What the cache costs here."""

    @abstractmethod
    def push(
        self,
        features: Mapping[str, Tensor] | None,
        embeddings: Float[Tensor, "n dim"],
        keys: Int64[Tensor, " n"],
        log_weights: Float[Tensor, " n"] | None = None,
    ) -> PushReport:
        """Let items in; each counts as encoded now. If it raises, nothing has changed.

        Args:
            features: What they are encoded from, `(n, …)` by name.
            embeddings: What that gave.
            keys: Numbers >= 0 that tell items apart.
            log_weights: log of how many items of the corpus each stands for, where items enter with
                unequal chances: −log of the chance to be held (see `log_inclusion`).
        """

    @abstractmethod
    def sample(
        self,
        queries: Float[Tensor, "batch dim"],
        num: int = 1,
        beta: float | Tensor = 1.0,
        exclude: Int64[Tensor, "batch ..."] | Ragged | None = None,
        exclude_everywhere: Int64[Tensor, " n"] | None = None,
        with_mean: bool = False,
        advance: bool = True,
    ) -> Draw:
        """Draw items from softmax(β · query · embedding + log-weight), exactly, in one pass.

        Args:
            queries: Encoded queries.
            num: Draws of each, independent and with replacement; 0 gives the log-partition alone.
            beta: The inverse temperature β.
            exclude: Keys that do not count for a query: its own positive `(batch,)`, a matrix
                `(batch, n)` with −1 for nothing, or lists of any length.
            exclude_everywhere: Keys that do not count for any of these queries.
            with_mean: Also give Σ p̃ⱼ Eⱼ, at the price of a second pass.
            advance: Whether the next call draws anew. Without, as in an evaluation, nothing is
                counted, and later draws are what they would have been.
        """

    @abstractmethod
    def commit(
        self,
        draw: Draw | None = None,
        drawn: Float[Tensor, "batch k dim"] | None = None,
        keys: Int64[Tensor, " n"] | None = None,
        embeddings: Float[Tensor, "n dim"] | None = None,
    ) -> None:
        """End a step: write back what it has encoded anew, and let every item age by one.

        If it raises, as for an embedding that is NaN, nothing has changed, on any rank.

        Args:
            draw: What was drawn.
            drawn: The drawn items as encoded now; of several encodings of one item the last counts.
            keys: Other items of the step, such as its positives: those that are held are rewritten.
            embeddings: What they were encoded to.
        """

    @abstractmethod
    def all_or_nothing(self) -> AbstractContextManager[None]:
        """If anything raises inside, the cache is again as it was before.

        Where ranks share it, an error inside must be one of all ranks.
        """

    @abstractmethod
    def rewrite(self, items: HeldItems, embeddings: Float[Tensor, "n dim"]) -> None:
        """Replace the embeddings of items that are still where they were by those they have now."""

    @abstractmethod
    def oldest(self, num: int) -> HeldItems:
        """The `num` items held here that were encoded longest ago, of equal ones lower rows first.

        Where ranks share a cache, each sweeps its own: a share ρ of `num_held_here` on every rank
        is a share ρ of all items, and nothing has to be sent for it.
        """

    @abstractmethod
    def reweigh(self, log_weights_of: Callable[[Int64[Tensor, " n"]], Float[Tensor, " n"]]) -> None:
        """Give every item held here the log-weight that its key has now."""

    @abstractmethod
    def tensors_here(self) -> dict[str, Tensor]:
        """All that is kept here by name, a line for each row; held items have the first rows."""

    @abstractmethod
    def counters(self) -> list[int]:
        """Steps, calls of `push`, draws and items pushed so far, and the seed of the draws."""

    @abstractmethod
    def resume(self, num_held_here: int, counters: Sequence[int]) -> None:
        """Go on from lines written to `tensors_here`, the first ones of them held, and counters."""

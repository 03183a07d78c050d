"""The contract of a negative cache, held by one process or sharded over ranks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from outsize.contracts import Shard
from outsize.errors import ConfigError
from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.draws import SoftmaxDraws
from outsize.negatives.cache.draw import Draw, HeldItems
from outsize.negatives.cache.key_index import as_lists
from outsize.negatives.cache.pair_logits import pair_logits
from outsize.negatives.cache.stored_items import StoredItems
from outsize.ranks.collectives import RankGroup
from outsize.spec import MemoryUse

# Stands for the count in files that were written before pushed items were counted.
UNKNOWN_PUSHED = 1 << 62


def require_pairs(
    draw: Draw | None, drawn: Tensor | None, keys: Tensor | None, embeddings: Tensor | None
) -> None:
    """Refuse items without their fresh embeddings, or the reverse."""
    for (what, given), (name, fresh) in (
        (("draw", draw), ("drawn", drawn)),
        (("keys", keys), ("embeddings", embeddings)),
    ):
        if (given is None) != (fresh is None):
            raise ConfigError(f"commit needs {what} and {name} together: give both, or neither")


def scaled_by(
    queries: Float[Tensor, "batch dim"], beta: float | Tensor
) -> Float32[Tensor, "batch dim"]:
    """β · queries in float32, without a gradient."""
    return queries.detach().float() * (beta.detach() if isinstance(beta, Tensor) else beta)


@dataclass(frozen=True)
class DrawOptions:
    """The options of `ItemCache.sample`, which describes them."""

    num: int
    exclude: Ragged | None
    exclude_everywhere: Int64[Tensor, " n"] | None
    with_mean: bool
    advance: bool
    with_pairs: bool
    systematic: bool


@dataclass(frozen=True)
class PushReport:
    """Counts of one `push`, over all ranks.

    Attributes:
        num_new: Items that were not held and got a row.
        num_known: Items that were held already and were overwritten in place.
        num_repeated: Items pushed twice in the call (the last one counts), or beyond the capacity.
    """

    num_new: int
    num_known: int
    num_repeated: int


class ItemCache(nn.Module, ABC):
    """Items with their stale embeddings, from which negatives are drawn.

    Only `push`, `commit` and `rewrite` change which items are held and their embeddings. In a cache
    that is shared by several ranks, `push`, `sample`, `commit`, `rewrite` and `resume` are
    collective: all ranks call them, also with no items. Everything else is local.

    Attributes:
        num_items: Capacity in items, over all ranks.
        dim: Width of an embedding.
        corpus_size: Size of the corpus, if the cache holds a uniform sample of it.
        shard: Which keys this rank owns: every `count`-th, starting at `index`.
        ranks: The ranks that share the cache; `None` for a cache of one rank.
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
        """The device of the stored items."""

    @property
    @abstractmethod
    def num_held(self) -> int:
        """Items held now, over all ranks."""

    @property
    def num_held_here(self) -> int:
        """Items held by this rank."""
        return self.num_held

    @property
    def num_items_here(self) -> int:
        """Capacity of this rank, in items."""
        return self.num_items

    @property
    @abstractmethod
    def num_pushed(self) -> int:
        """Items pushed so far, over all ranks, repeated ones included.

        `UNKNOWN_PUSHED` or more for a cache from a file that has no count.
        """

    @property
    def alpha(self) -> float:
        """α, the share of the corpus that is held; 1 without a `corpus_size`."""
        return 1.0 if self.corpus_size is None else self.num_held / self.corpus_size

    def log_weight(self) -> float:
        """Log of 1/α: of how many items of the corpus each held item stands for."""
        if self.corpus_size is None or not self.num_held:
            return 0.0
        return math.log(self.corpus_size / self.num_held)

    def own_keys(self, num_keys: int) -> range:
        """The keys among 0 … num_keys − 1 that this rank owns."""
        return range(self.shard.index, num_keys, self.shard.count)

    @abstractmethod
    def ages(self) -> Int64[Tensor, " held"]:
        """The age of each item held by this rank: commits since it was encoded."""

    @abstractmethod
    def memory_use(self) -> MemoryUse:
        """Memory of the cache on this rank."""

    @abstractmethod
    def push(
        self,
        features: Mapping[str, Tensor] | None,
        embeddings: Float[Tensor, "n dim"],
        keys: Int64[Tensor, " n"],
        log_weights: Float[Tensor, " n"] | None = None,
    ) -> PushReport:
        """Add items, with age 0. If it raises, the cache is unchanged.

        Args:
            features: The encoder's inputs, `(n, …)` by name.
            embeddings: The embeddings of these items.
            keys: Integers >= 0 that identify items.
            log_weights: log of how many items of the corpus each one stands for, if items enter
                with unequal probability: −log πⱼ (see `log_inclusion`).
        """

    @torch.no_grad()
    def sample(
        self,
        queries: Float[Tensor, "batch dim"],
        num: int = 1,
        beta: float | Tensor = 1.0,
        exclude: Int64[Tensor, "batch ..."] | Ragged | None = None,
        exclude_everywhere: Int64[Tensor, " n"] | None = None,
        with_mean: bool = False,
        advance: bool = True,
        with_pairs: bool = False,
        systematic: bool = False,
    ) -> Draw:
        """Draw items from softmax(β · query · embedding + log-weight), exactly, in one pass.

        Args:
            queries: Encoded queries.
            num: Draws per query, with replacement and independent unless `systematic`; 0 computes
                only the log-partition.
            beta: The inverse temperature β.
            exclude: Keys to mask per query: its positive `(batch,)`, a matrix `(batch, n)` padded
                with −1, or lists of any length.
            exclude_everywhere: Keys to mask for all queries.
            with_mean: Also return Σ p̃ⱼ Eⱼ, for the price of a second pass.
            advance: Whether to count this draw. An uncounted one, as in an evaluation, does not
                change later draws.
            with_pairs: Also return the logits of every query for the items drawn by the others.
            systematic: Draw with equally spaced uniform numbers per query. Each draw alone has the
                same distribution; together they repeat items as little as possible.
        """
        lists = None if exclude is None else as_lists(exclude)
        options = DrawOptions(
            num, lists, exclude_everywhere, with_mean, advance, with_pairs, systematic
        )
        draw = self._sample_by_kernels(queries, beta, options)
        if draw is not None:
            return draw
        scaled = scaled_by(queries, beta)
        drawn, generator = self._draw(scaled, options)
        uniforms = torch.rand(drawn.rows.shape, generator=generator, device=queries.device)
        keys, ages, items = self.found_at(drawn.rows.flatten())

        def by_query(values: Tensor) -> Tensor:
            return values.view(*drawn.rows.shape, *values.shape[1:])

        pairs = pair_logits(scaled, drawn, keys, items, lists) if with_pairs else None
        return Draw(
            rows=drawn.rows,
            keys=by_query(keys),
            features={name: by_query(values) for name, values in items.features.items()},
            embeddings=by_query(items.embeddings()),
            ages=by_query(ages),
            logits=drawn.logits,
            log_partition=drawn.log_partition,
            uniforms=uniforms,
            mean_embedding=drawn.mean,
            pair_logits=pairs,
        )

    def _sample_by_kernels(
        self, queries: Float[Tensor, "batch dim"], beta: float | Tensor, options: DrawOptions
    ) -> Draw | None:
        """`sample` in a few kernels; `None` where there are none for these tensors."""
        return None

    @abstractmethod
    def _draw(
        self, scaled: Float32[Tensor, "batch dim"], options: DrawOptions
    ) -> tuple[SoftmaxDraws, torch.Generator]:
        """Draw rows for queries that are already multiplied by β; returns the generator, too."""

    @abstractmethod
    def found_at(self, rows: Int64[Tensor, " n"]) -> tuple[Tensor, Tensor, StoredItems]:
        """Keys, ages and items in the given rows; `NO_KEY`, 0 and filler for row −1."""

    @abstractmethod
    def commit(
        self,
        draw: Draw | None = None,
        drawn: Float[Tensor, "batch k dim"] | None = None,
        keys: Int64[Tensor, " n"] | None = None,
        embeddings: Float[Tensor, "n dim"] | None = None,
    ) -> None:
        """End a step: write back fresh embeddings, and increase the age of all other items by 1.

        If it raises, for example because an embedding is NaN, no rank's cache has changed.

        Args:
            draw: The draw of this step.
            drawn: Fresh embeddings of the drawn items; of several for one item, the last counts.
            keys: Other items of the step, such as its positives; those held are written back too.
            embeddings: Their fresh embeddings.
        """

    @abstractmethod
    def all_or_nothing(self) -> AbstractContextManager[None]:
        """If anything raises inside, restore the cache to its state on entry.

        In a shared cache, an error inside must be raised on all ranks.
        """

    @abstractmethod
    def rewrite(self, items: HeldItems, embeddings: Float[Tensor, "n dim"]) -> None:
        """Write fresh embeddings of items; skips rows that hold another item by now."""

    @abstractmethod
    def oldest(self, num: int) -> HeldItems:
        """The `num` oldest items of this rank by age; ties go to lower rows.

        In a shared cache, each rank sweeps its own items: a share ρ of `num_held_here` on every
        rank is a share ρ of all items, and nothing is sent.
        """

    @abstractmethod
    def reweigh(self, log_weights_of: Callable[[Int64[Tensor, " n"]], Float[Tensor, " n"]]) -> None:
        """Set the log-weight of every item held by this rank, as a function of its key."""

    @abstractmethod
    def tensors_here(self) -> dict[str, Tensor]:
        """The tensors of this rank by name, one entry per row; held items are in the first rows."""

    @abstractmethod
    def counters(self) -> list[int]:
        """The clock, calls of `push`, draws and items pushed so far, and the seed of the draws."""

    @abstractmethod
    def resume(self, num_held_here: int, counters: Sequence[int]) -> None:
        """Take over what was written into `tensors_here`.

        Args:
            num_held_here: Items held; they are in the first rows.
            counters: What `counters` returned when it was saved.
        """

"""A cache of mostly stale item embeddings, from which negatives are drawn.

"Efficient training of retrieval models using negative cache" (Lindgren et al., NeurIPS 2021). Of
each item the cache stores the encoder's inputs and the embedding of its last encoding. A step draws
items for its queries (`sample`), re-encodes them with gradients, and writes the fresh embeddings
back (`commit`). New items evict old ones (`push`); a sweep re-encodes the oldest (`oldest`,
`rewrite`). Nothing else changes a cache, so a forward pass can be repeated or discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from outsize.contracts import Shard
from outsize.errors import ConfigError
from outsize.kernels.available import uses_triton
from outsize.kernels.directory.lookup import keys_and_ages
from outsize.kernels.softmax.draws import ScoredItems, SoftmaxDraws, draw_from_softmax
from outsize.kernels.softmax.held_draws import HeldKeys
from outsize.negatives.cache.cache_state import CacheState
from outsize.negatives.cache.contract import DrawOptions, PushReport, require_pairs
from outsize.negatives.cache.draw import Draw, HeldItems
from outsize.negatives.cache.item_eviction import ITEM_EVICTION
from outsize.negatives.cache.item_rows import FeatureShapes, ItemRows, require_weights
from outsize.negatives.cache.kernel_draws import sample_by_kernels
from outsize.negatives.cache.key_index import NO_KEY, last_occurrences
from outsize.negatives.cache.stored_items import StoredItems
from outsize.negatives.cache.undo import Undo
from outsize.registries import require_known
from outsize.spec import MemoryUse

_NOT_REPLACED = ("items.feature_", "keys", "log_weights")  # what a write-back leaves as it is


class NegativeCache(CacheState):
    """A negative cache of one rank: one row per item, each item at most once by its key.

    New items use empty rows first. Then they evict the items that entered longest ago ("fifo") or
    were encoded longest ago ("lru", where a write-back protects an item). Items of the same `push`
    are evicted in the order of their rows. An item that is pushed while it is held is overwritten
    in place; under "fifo" it keeps its place in the eviction order.

    All state is in buffers and `get_extra_state`, so that a resumed cache makes the same draws. The
    cache moves between devices but keeps its dtypes: `.half()` has no effect. Keep it outside a
    module that is wrapped by DDP, which would overwrite it with the cache of rank 0.

    Args:
        num_items: Capacity in items.
        dim: Width of an embedding.
        features: The encoder's inputs: name → (shape, dtype) of the feature of one item.
        precision: How embeddings are stored: "float32", "bfloat16" or "int8" (one scale per item).
            For the latter two, queries are rounded to bfloat16 before they are scored.
        eviction: "fifo" or "lru".
        corpus_size: Size of the corpus, if the cache holds a uniform sample of it. Each item then
            counts for corpus_size / held items, the 1/α of Lemma 4. `None` gives each item
            weight 1, as for a cache of the whole corpus.
        seed: Seed of the draws.

    Example:
        >>> cache = outsize.NegativeCache(num_items=1000, dim=8, features={"id": ((), torch.int64)})
        >>> keys = torch.arange(10)
        >>> report = cache.push({"id": keys}, torch.randn(10, 8), keys)
        >>> draw = cache.sample(torch.randn(2, 8), num=4, beta=20.0, exclude=torch.tensor([3, 7]))
        >>> draw.keys.shape, bool((draw.keys[0] == 3).any())
        (torch.Size([2, 4]), False)
    """

    def __init__(
        self,
        num_items: int,
        dim: int,
        features: FeatureShapes | None = None,
        precision: str = "bfloat16",
        eviction: str = "fifo",
        corpus_size: int | None = None,
        seed: int = 0,
    ) -> None:
        if num_items < 1 or dim < 1:
            raise ConfigError(f"num_items and dim must be >= 1, but got {num_items} and {dim}")
        require_known("eviction", eviction, ITEM_EVICTION)
        if corpus_size is not None and corpus_size < 1:
            raise ConfigError(f"corpus_size must be >= 1, but got {corpus_size}")
        super().__init__(num_items, seed)
        self.dim = dim
        self.eviction = eviction
        self.corpus_size = corpus_size
        self.shard = Shard()
        self._renews = ITEM_EVICTION[eviction].renews
        self._undo = Undo()
        self.items = ItemRows(num_items, dim, features or {}, precision)

    def memory_use(self) -> MemoryUse:
        """Memory of the cache: items, their keys and stamps."""
        return MemoryUse.of({"cache": self.buffers()})

    def extra_repr(self) -> str:  # noqa: D102
        sizes = f"num_items={self.num_items}, dim={self.dim}, corpus_size={self.corpus_size}"
        return f"{sizes}, eviction={self.eviction!r}"

    @torch.no_grad()
    def push(  # noqa: D102
        self,
        features: Mapping[str, Tensor] | None,
        embeddings: Float[Tensor, "n dim"],
        keys: Int64[Tensor, " n"],
        log_weights: Float[Tensor, " n"] | None = None,
    ) -> PushReport:
        return self.take_in(keys, *self.prepare(features, embeddings, keys, log_weights))

    def prepare(
        self,
        features: Mapping[str, Tensor] | None,
        embeddings: Float[Tensor, "n dim"],
        keys: Int64[Tensor, " n"],
        log_weights: Float[Tensor, " n"] | None = None,
    ) -> tuple[Float32[Tensor, " n"], StoredItems]:
        """Check items and convert them to what `take_in` writes: log-weights and stored items."""
        items = self.items.prepare(embeddings, keys, features or {})
        if log_weights is None:
            return torch.zeros_like(keys, dtype=torch.float32), items
        require_weights(log_weights, keys)
        return log_weights.float(), items

    def take_in(
        self, keys: Int64[Tensor, " n"], log_weights: Float32[Tensor, " n"], items: StoredItems
    ) -> PushReport:
        """Push items that `prepare` has converted."""
        last = last_occurrences(keys)
        found = self.rows_of(keys[last])
        known, known_rows = last[found >= 0], found[found >= 0]
        new = last[found < 0][-self.num_items :]
        self._undo.save(known_rows)
        self._num_pushes += 1
        self.num_pushed += len(keys)
        if self._renews:
            self.stamps[known_rows] = self._num_pushes
        new_rows = self._by_stamp.take(new.shape[0])
        num_empty = self.num_items - self.num_held  # empty rows are used first
        # Empty rows are zero: no copy is needed.
        self._undo.save(new_rows[:num_empty], zero="items.")
        self._undo.save(new_rows[num_empty:])
        self.num_held = min(self.num_items, self.num_held + len(new))
        self.stamps[new_rows] = self._num_pushes
        self.keys[new_rows] = keys[new]
        self._index.add(new_rows)
        is_held = self.keys[known_rows] == keys[known]  # a new item may have evicted it
        rows = torch.cat((known_rows[is_held], new_rows))
        which = torch.cat((known[is_held], new))
        self.items.put(rows, items.take(which))
        self.log_weights[rows] = log_weights[which]
        self.encoded_at[rows] = self.clock
        return PushReport(len(new), len(known), len(keys) - len(new) - len(known))

    def _draw(
        self, scaled: Float32[Tensor, "batch dim"], options: DrawOptions
    ) -> tuple[SoftmaxDraws, torch.Generator]:
        generator = self.next_generator(options.advance)
        return self.draw_rows(scaled, options, generator), generator

    def _sample_by_kernels(
        self, queries: Float[Tensor, "batch dim"], beta: float | Tensor, options: DrawOptions
    ) -> Draw | None:
        if not (len(queries) and uses_triton(queries.detach(), self.keys)):
            return None
        return sample_by_kernels(self, queries, beta, options)

    def held_keys(self) -> HeldKeys:
        """The keys of rows, as the kernels read them."""
        return HeldKeys(self.keys, self.encoded_at, self.clock, self._index.lists())

    def found_at(  # noqa: D102
        self, rows: Int64[Tensor, " n"]
    ) -> tuple[Tensor, Tensor, StoredItems]:
        keys, ages = keys_and_ages(rows, self.keys, self.encoded_at, self.clock)
        return keys, ages, self.items.at(rows)

    def draw_rows(
        self,
        scaled: Float32[Tensor, "batch dim"],
        options: DrawOptions,
        generator: torch.Generator,
    ) -> SoftmaxDraws:
        """Draw rows for queries that are already multiplied by β."""
        items, lists = self.scored(options.exclude_everywhere), options.exclude
        excluded = None if lists is None else lists.with_values(self.rows_of(lists.values))
        how = (options.with_mean, options.systematic)
        return draw_from_softmax(scaled, items, options.num, generator, excluded, *how)

    @torch.no_grad()
    def commit(  # noqa: D102
        self,
        draw: Draw | None = None,
        drawn: Float[Tensor, "batch k dim"] | None = None,
        keys: Int64[Tensor, " n"] | None = None,
        embeddings: Float[Tensor, "n dim"] | None = None,
    ) -> None:
        require_pairs(draw, drawn, keys, embeddings)
        parts: list[tuple[HeldItems, Tensor]] = []
        if draw is not None and drawn is not None:
            parts.append((draw.items(), drawn.flatten(0, 1)))
        if keys is not None and embeddings is not None:
            parts.append((HeldItems(self.rows_of(keys), keys, {}), embeddings))
        if not parts:
            self.tick()
            return
        rows = torch.cat([items.rows for items, _ in parts])
        items = HeldItems(rows, torch.cat([items.keys for items, _ in parts]), {})
        held, prepared = self._still_held(items, torch.cat([encoded for _, encoded in parts]))
        self.tick()
        self._write_last(held, prepared)

    def tick(self) -> None:
        """Advance the clock: the age of every item grows by 1."""
        self.clock += 1

    @torch.no_grad()
    def rewrite(self, items: HeldItems, embeddings: Float[Tensor, "n dim"]) -> None:  # noqa: D102
        self._write_last(*self._still_held(items, embeddings))

    def replace(
        self, rows: Int64[Tensor, " n"], keys: Int64[Tensor, " n"], items: StoredItems
    ) -> None:
        """Write prepared items into rows; skips rows that no longer hold the key."""
        holds = (self.keys[rows] == keys).nonzero().flatten()
        self._write_last(rows[holds], items.take(holds))

    def _write_last(self, rows: Int64[Tensor, " n"], items: StoredItems) -> None:
        """Write prepared items into rows that hold them; of those of one row, the last."""
        last = last_occurrences(rows)
        written = rows[last]
        self._undo.save(written, _NOT_REPLACED)
        self.items.put(written, items.take(last))
        self.encoded_at[written] = self.clock
        if self._renews:
            self._num_pushes += 1
            self.stamps[written] = self._num_pushes

    def all_or_nothing(self) -> AbstractContextManager[None]:  # noqa: D102
        return self._undo.all_or_nothing(self)

    @torch.no_grad()
    def oldest(self, num: int) -> HeldItems:  # noqa: D102
        return self.held(self._by_encoding.take(num))

    @torch.no_grad()
    def held(self, rows: Int64[Tensor, " n"]) -> HeldItems:
        """The items in given rows."""
        return HeldItems(rows, self.keys[rows], self.items.features_at(rows))

    @torch.no_grad()
    def reweigh(  # noqa: D102
        self, log_weights_of: Callable[[Int64[Tensor, " n"]], Float[Tensor, " n"]]
    ) -> None:
        weights = log_weights_of(self.keys.clamp_min(0)).float()
        self._undo.save(torch.arange(self.num_items, device=self.device), only="log_weights")
        self.log_weights.copy_(torch.where(self.keys == NO_KEY, -torch.inf, weights))

    @torch.no_grad()
    def scored(self, exclude_everywhere: Int64[Tensor, " n"] | None = None) -> ScoredItems:
        """The cache as the kernels read it: empty rows and excluded items have log-weight −∞."""
        weights = self.log_weights
        if self.corpus_size is not None:
            weights = weights + self.log_weight()
        if exclude_everywhere is not None:
            rows = self.rows_of(exclude_everywhere)
            # The extra entry takes keys that are not held.
            padded = torch.cat((weights, weights[:1]))
            padded[torch.where(rows >= 0, rows, self.num_items)] = -torch.inf
            weights = padded[:-1]
        return ScoredItems(self.items.vectors, self.items.scales, weights)

    def _still_held(
        self, items: HeldItems, embeddings: Float[Tensor, "n dim"]
    ) -> tuple[Int64[Tensor, " held"], StoredItems]:
        """Rows and prepared items, for the rows that still hold their key."""
        # One search for what is held: each selection by a mask would make its own, and wait for it.
        holds = (items.rows >= 0) & (self.keys[items.rows.clamp_min(0)] == items.keys)
        held = holds.nonzero().flatten()
        return items.rows[held], self.items.prepare(embeddings[held], items.keys[held])

"""A negative cache sharded over ranks: each item has one owner, and queries see all items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from outsize.contracts import Shard
from outsize.hashing import derive_seed
from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.draws import SoftmaxDraws
from outsize.negatives.cache.contract import DrawOptions, ItemCache, PushReport, require_pairs
from outsize.negatives.cache.draw import Draw, HeldItems
from outsize.negatives.cache.item_rows import FeatureShapes
from outsize.negatives.cache.key_index import last_occurrences
from outsize.negatives.cache.negative_cache import NegativeCache
from outsize.negatives.cache.shard_draws import (
    DrawRequest,
    combine_draws,
    draw_candidates,
    exchange_requests,
)
from outsize.negatives.cache.shard_messages import fetch_items, send_to_owners
from outsize.negatives.cache.stored_items import StoredItems
from outsize.ranks.collectives import ProcessRanks, RankGroup
from outsize.ranks.tensor_swaps import swap_answers
from outsize.spec import MemoryUse


class ShardedNegativeCache(ItemCache):
    """A negative cache whose items are sharded over ranks; draws are exactly those of one cache.

    The item with key k is owned by rank k mod the number of ranks, so no item is held twice. Keys
    0 … N−1 are spread evenly, and a cache of N items holds all of them. If keys are not spread over
    all remainders, some ranks fill up and evict while others have empty rows. Each rank evicts its
    own items, in the order they entered or were encoded.

    If several ranks push or encode the same item in one step, the last encoding of the highest rank
    counts. Ranks draw with different seeds.

    A rank's items are not among the module's parameters, buffers and `state_dict`, which DDP and
    checkpoints assume to be equal on all ranks. `outsize.negatives.write_cache` and `load_cache`
    save and load them, on any number of ranks. `.to(device)` moves them.

    Args:
        num_items: Capacity in items over all ranks, rounded up to a multiple of their number.
        dim: Width of an embedding.
        features: As for `NegativeCache`, like the next four arguments; equal on all ranks.
        precision: How embeddings are stored.
        eviction: "fifo" or "lru".
        corpus_size: Size of the corpus, if the cache holds a uniform sample of it.
        seed: Seed of the draws.
        group: The ranks that share the cache; all by default.

    Example:
        >>> cache = outsize.ShardedNegativeCache(1000, 8, {"id": ((), torch.int64)})
        >>> keys = torch.arange(10)  # on each rank those it has encoded
        >>> report = cache.push({"id": keys}, torch.randn(10, 8), keys)
        >>> cache.sample(torch.randn(2, 8), num=4).keys.shape
        torch.Size([2, 4])
    """

    ranks: RankGroup
    num_held: int = 0
    num_pushed: int = 0

    def __init__(
        self,
        num_items: int,
        dim: int,
        features: FeatureShapes | None = None,
        precision: str = "bfloat16",
        eviction: str = "fifo",
        corpus_size: int | None = None,
        seed: int = 0,
        group: dist.ProcessGroup | RankGroup | None = None,
    ) -> None:
        super().__init__()
        self.ranks = group if isinstance(group, RankGroup) else ProcessRanks(group)
        self.shard = Shard(self.ranks.rank, self.ranks.size)
        rows = -(-num_items // self.ranks.size)
        own_seed = derive_seed(seed, "shard", self.ranks.rank)
        # In a tuple, so that it is not a submodule: those are assumed to be equal on all ranks.
        # Its corpus_size is None: the weight 1/α follows from the items of all ranks.
        self._own = (NegativeCache(rows, dim, features, precision, eviction, None, own_seed),)
        self.num_items = rows * self.ranks.size
        self.dim = dim
        self.corpus_size = corpus_size
        self._facts = (
            f"a cache of {self.num_items} items of width {dim}; {precision} items; {eviction}; "
            f"corpus_size {corpus_size}; features {sorted((features or {}).items())}"
        )

    @property
    def own(self) -> NegativeCache:
        """The shard of this rank."""
        return self._own[0]

    @property
    def clock(self) -> int:  # noqa: D102
        return self.own.clock

    @property
    def device(self) -> torch.device:  # noqa: D102
        return self.own.device

    @property
    def num_held_here(self) -> int:  # noqa: D102
        return self.own.num_held

    @property
    def num_items_here(self) -> int:  # noqa: D102
        return self.own.num_items

    def ages(self) -> Int64[Tensor, " held"]:  # noqa: D102
        return self.own.ages()

    def memory_use(self) -> MemoryUse:
        """Memory of this rank's shard."""
        return self.own.memory_use()

    def extra_repr(self) -> str:  # noqa: D102
        share = f"{self.shard.index} of {self.shard.count}"
        return f"num_items={self.num_items}, dim={self.dim}, shard={share}"

    @torch.no_grad()
    def push(  # noqa: D102
        self,
        features: Mapping[str, Tensor] | None,
        embeddings: Float[Tensor, "n dim"],
        keys: Int64[Tensor, " n"],
        log_weights: Float[Tensor, " n"] | None = None,
    ) -> PushReport:
        template, no_keys = self.own.items.at(self.own.keys[:0]), self.own.keys[:0]

        def prepare() -> list[Tensor]:
            weights, items = self.own.prepare(features, embeddings, keys, log_weights)
            return [keys % self.shard.count, keys, weights, *items.tensors()]

        no_message = [no_keys, no_keys, self.own.log_weights[:0], *template.tensors()]
        theirs, weights, *rest = self._send(prepare, no_message, "a push of items")
        report = self.own.take_in(theirs, weights, template.with_tensors(rest))
        *pushed, self.num_held = self._sum_over_ranks(
            report.num_new, report.num_known, report.num_repeated, self.own.num_held
        )
        self.num_pushed += sum(pushed)
        return PushReport(*pushed)

    def _draw(
        self, scaled: Float32[Tensor, "batch dim"], options: DrawOptions
    ) -> tuple[SoftmaxDraws, torch.Generator]:
        no_keys = torch.empty(len(scaled), 0, dtype=torch.int64, device=scaled.device)
        everywhere = options.exclude_everywhere
        request = DrawRequest(
            scaled,
            Ragged.of(no_keys) if options.exclude is None else options.exclude,
            no_keys.flatten() if everywhere is None else everywhere,
        )
        dtype = self.own.items.vectors.dtype
        requests = exchange_requests(self.ranks, request, dtype, options, self._facts)
        generator = self.own.next_generator(options.advance)
        answers = swap_answers(
            self.ranks,
            draw_candidates(self.own, requests, options, generator),
            [len(scaled)] * self.ranks.size,
        )
        drawn = combine_draws(
            answers, self.num_items_here, self.log_weight(), generator, options.systematic
        )
        return drawn, generator

    def found_at(  # noqa: D102
        self, rows: Int64[Tensor, " n"]
    ) -> tuple[Tensor, Tensor, StoredItems]:
        return fetch_items(self.ranks, self.own, rows)

    @torch.no_grad()
    def commit(  # noqa: D102
        self,
        draw: Draw | None = None,
        drawn: Float[Tensor, "batch k dim"] | None = None,
        keys: Int64[Tensor, " n"] | None = None,
        embeddings: Float[Tensor, "n dim"] | None = None,
    ) -> None:
        def prepare() -> list[Tensor]:
            require_pairs(draw, drawn, keys, embeddings)
            parts = [self._empty_message()]
            if draw is not None and drawn is not None:
                parts.append(self._for_owners(draw.items(), drawn.flatten(0, 1)))
            if keys is not None and embeddings is not None:
                last = last_occurrences(keys)  # row −1: only the owner knows the row
                rows = torch.full_like(last, -1)
                stored = self.own.items.prepare(embeddings[last], keys[last])
                owners = keys[last] % self.shard.count
                parts.append([owners, rows, keys[last], *stored.tensors()])
            return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]

        received = self._send(prepare, self._empty_message(), "a commit of items")
        self.own.tick()
        self._replace(received)

    @torch.no_grad()
    def rewrite(self, items: HeldItems, embeddings: Float[Tensor, "n dim"]) -> None:  # noqa: D102
        def prepare() -> list[Tensor]:
            return self._for_owners(items, embeddings)

        self._replace(self._send(prepare, self._empty_message(), "a rewrite of items"))

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:  # noqa: D102
        before = self.num_held, self.num_pushed
        try:
            with self.own.all_or_nothing():
                yield
        except BaseException:
            self.num_held, self.num_pushed = before
            raise

    def oldest(self, num: int) -> HeldItems:  # noqa: D102
        own = self.own.oldest(num)
        return HeldItems(own.rows + self._first_row, own.keys, own.features)

    def reweigh(  # noqa: D102
        self, log_weights_of: Callable[[Int64[Tensor, " n"]], Float[Tensor, " n"]]
    ) -> None:
        self.own.reweigh(log_weights_of)

    def tensors_here(self) -> dict[str, Tensor]:  # noqa: D102
        return self.own.tensors_here()

    def counters(self) -> list[int]:  # noqa: D102
        *counts, _, seed = self.own.counters()
        return [*counts, self.num_pushed, seed]

    def resume(self, num_held_here: int, counters: Sequence[int]) -> None:  # noqa: D102
        self.own.resume(num_held_here, counters)
        self.num_pushed = self.own.num_pushed  # saved for all ranks
        (self.num_held,) = self._sum_over_ranks(num_held_here)

    def _empty_message(self) -> list[Tensor]:
        """A message without items: owners, rows, keys and items, all empty."""
        no_keys = self.own.keys[:0]
        return [no_keys, no_keys, no_keys, *self._no_items.tensors()]

    def _for_owners(self, items: HeldItems, embeddings: Float[Tensor, "n dim"]) -> list[Tensor]:
        """A message with fresh embeddings: the owner of each item, its row there, key and item."""
        held = (items.rows >= 0).nonzero().flatten()
        last = held[last_occurrences(items.rows[held])]
        rows, keys = items.rows[last], items.keys[last]
        stored = self.own.items.prepare(embeddings[last], keys)
        return [rows // self.num_items_here, rows % self.num_items_here, keys, *stored.tensors()]

    def _replace(self, received: Sequence[Tensor]) -> None:
        """Write received items into this rank's rows; row −1 is looked up by key."""
        rows, keys, *rest = received
        rows = torch.where(rows >= 0, rows, self.own.rows_of(keys))
        self.own.replace(rows, keys, self._no_items.with_tensors(rest))

    @property
    def _no_items(self) -> StoredItems:
        """Zero items without features, as a template for received tensors."""
        return replace(self.own.items.at(self.own.keys[:0]), features={})

    def _send(
        self, prepare: Callable[[], list[Tensor]], empty: Sequence[Tensor], operation: str
    ) -> list[Tensor]:
        """Send items to their owners; see `send_to_owners`."""
        return send_to_owners(self.ranks, prepare, empty, operation, self._facts)

    def _sum_over_ranks(self, *numbers: int) -> list[int]:
        """The sum of each number over all ranks."""
        counts = torch.tensor([numbers] * self.ranks.size, device=self.device)
        sums: list[int] = self.ranks.swap_counts(counts).sum(dim=0).tolist()
        return sums

    @property
    def _first_row(self) -> int:
        return self.shard.index * self.num_items_here

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ShardedNegativeCache:
        """Move this rank's shard too."""
        super()._apply(fn, recurse)
        self.own._apply(fn, recurse)
        return self

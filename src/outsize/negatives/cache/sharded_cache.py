"""A negative cache sharded over ranks: each item has one owner, and queries see all items."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts import Shard
from outsize.errors import DataError
from outsize.hashing import derive_seed
from outsize.kernels.ragged import Ragged
from outsize.negatives.cache.contract import ItemCache, PushReport
from outsize.negatives.cache.draw import Draw, HeldItems
from outsize.negatives.cache.item_rows import FeatureShapes
from outsize.negatives.cache.key_index import NO_KEY, as_lists, last_occurrences
from outsize.negatives.cache.negative_cache import Eviction, NegativeCache
from outsize.negatives.cache.precision import Precision
from outsize.negatives.cache.shard_draws import DrawRequest, combine_draws, draw_candidates
from outsize.negatives.cache.stored_items import StoredItems
from outsize.ranks.collectives import ProcessRanks, RankGroup
from outsize.ranks.owners import places_by_owner
from outsize.ranks.tensor_swaps import swap_answers, swap_tensors
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

    def __init__(
        self,
        num_items: int,
        dim: int,
        features: FeatureShapes | None = None,
        precision: Precision = "bfloat16",
        eviction: Eviction = "fifo",
        corpus_size: int | None = None,
        seed: int = 0,
        group: dist.ProcessGroup | RankGroup | None = None,
    ) -> None:
        super().__init__()
        self.ranks = group if isinstance(group, RankGroup) else ProcessRanks(group)
        self.shard = Shard(self.ranks.rank, self.ranks.size)
        rows = -(-num_items // self.ranks.size)
        own_seed = derive_seed(seed, "shard", self.ranks.rank)
        # In a tuple, so that it is no submodule: those are assumed to be equal on all ranks.
        # Its corpus_size is None: the weight 1/α follows from the items of all ranks.
        self._own = (NegativeCache(rows, dim, features, precision, eviction, None, own_seed),)
        self.num_items = rows * self.ranks.size
        self.dim = dim
        self.corpus_size = corpus_size
        self._facts = (
            f"a cache of {self.num_items} items of width {dim}; {precision} items; {eviction}; "
            f"corpus_size {corpus_size}; features {sorted((features or {}).items())}"
        )
        self._num_held = self._num_pushed = 0

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
    def num_held(self) -> int:
        """Items held over all ranks; known without communication."""
        return self._num_held

    @property
    def num_held_here(self) -> int:  # noqa: D102
        return self.own.num_held

    @property
    def num_items_here(self) -> int:  # noqa: D102
        return self.own.num_items

    @property
    def num_pushed(self) -> int:  # noqa: D102
        return self._num_pushed

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
        theirs, weights, *rest = self._send_to_owners(prepare, no_message, "a push of items")
        report = self.own.take_in(theirs, weights, template.with_tensors(rest))
        *pushed, self._num_held = self._sum_over_ranks(
            report.num_new, report.num_known, report.num_repeated, self.own.num_held
        )
        self._num_pushed += sum(pushed)
        return PushReport(*pushed)

    @torch.no_grad()
    def sample(  # noqa: D102
        self,
        queries: Float[Tensor, "batch dim"],
        num: int = 1,
        beta: float | Tensor = 1.0,
        exclude: Int64[Tensor, "batch ..."] | Ragged | None = None,
        exclude_everywhere: Int64[Tensor, " n"] | None = None,
        with_mean: bool = False,
        advance: bool = True,
    ) -> Draw:
        scaled = queries.detach().float() * (beta.detach() if isinstance(beta, Tensor) else beta)
        no_keys = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
        request = DrawRequest(
            scaled,
            as_lists(no_keys if exclude is None else exclude),
            no_keys.flatten() if exclude_everywhere is None else exclude_everywhere,
        )
        requests = self._exchange_requests(request, num, with_mean)
        generator = self.own.next_generator(advance)
        answers = swap_answers(
            self.ranks,
            draw_candidates(self.own, requests, num, generator, with_mean),
            [len(queries)] * self.ranks.size,
        )
        drawn = combine_draws(answers, self.num_items_here, self._log_weight(), generator)
        uniforms = torch.rand(drawn.rows.shape, generator=generator, device=queries.device)
        found = self._fetch(drawn.rows.flatten())
        return Draw.of(drawn.rows, *found, drawn.logits, drawn.log_partition, uniforms, drawn.mean)

    @torch.no_grad()
    def commit(  # noqa: D102
        self,
        draw: Draw | None = None,
        drawn: Float[Tensor, "batch k dim"] | None = None,
        keys: Int64[Tensor, " n"] | None = None,
        embeddings: Float[Tensor, "n dim"] | None = None,
    ) -> None:
        def prepare() -> list[Tensor]:
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

        received = self._send_to_owners(prepare, self._empty_message(), "a commit of items")
        self.own.tick()
        self._replace(received)

    @torch.no_grad()
    def rewrite(self, items: HeldItems, embeddings: Float[Tensor, "n dim"]) -> None:  # noqa: D102
        received = self._send_to_owners(
            lambda: self._for_owners(items, embeddings), self._empty_message(), "a rewrite of items"
        )
        self._replace(received)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:  # noqa: D102
        before = self._num_held, self._num_pushed
        try:
            with self.own.all_or_nothing():
                yield
        except BaseException:
            self._num_held, self._num_pushed = before
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
        return [*counts, self._num_pushed, seed]

    def resume(self, num_held_here: int, counters: Sequence[int]) -> None:  # noqa: D102
        self.own.resume(num_held_here, counters)
        self._num_pushed = self.own.num_pushed  # saved for all ranks
        (self._num_held,) = self._sum_over_ranks(num_held_here)

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

    def _exchange_requests(
        self, request: DrawRequest, num: int, with_mean: bool
    ) -> list[DrawRequest]:
        """Send this rank's request to every rank, and receive theirs."""
        dtype, notes = self.own.items.vectors.dtype, [num, int(with_mean)]
        shards = (Shard(rank, self.ranks.size) for rank in range(self.ranks.size))
        sent = [request.tensors(dtype, shard) for shard in shards]
        received, others = swap_tensors(self.ranks, sent, notes, "a draw of items", self._facts)
        for rank, other in enumerate(others):
            if other != notes:
                raise DataError(
                    f"rank {rank} draws {other[0]} items per query, with_mean={bool(other[1])}, "
                    f"but rank {self.ranks.rank} draws {num}, with_mean={with_mean}: all must agree"
                )
        return [DrawRequest.from_tensors(tensors) for tensors in received]

    def _fetch(self, rows: Int64[Tensor, " n"]) -> tuple[Tensor, Tensor, StoredItems]:
        """Fetch keys, ages and items in the given rows from their owners, each row once.

        As in `NegativeCache.found_at`, row −1 gives `NO_KEY`, 0 and filler.
        """
        wanted = rows.clamp_min(0)
        distinct, place = torch.unique(wanted, return_inverse=True)  # sorted, so grouped by owner
        owners, own_rows = distinct // self.num_items_here, distinct % self.num_items_here
        sizes = torch.bincount(owners, minlength=self.ranks.size).tolist()
        received, _ = swap_tensors(
            self.ranks, [[part] for part in own_rows.split(sizes)], (), "a fetch of drawn items"
        )
        answers: list[list[Tensor]] = []
        for (requested,) in received:
            keys, ages, items = self.own.found_at(requested)
            answers.append([keys, ages, *items.tensors()])
        found = swap_answers(self.ranks, answers, sizes)
        keys, ages, *rest = (torch.cat(parts)[place] for parts in zip(*found, strict=True))
        keys, ages = torch.where(rows >= 0, keys, NO_KEY), torch.where(rows >= 0, ages, 0)
        return keys, ages, self.own.items.at(self.own.keys[:0]).with_tensors(rest)

    def _send_to_owners(
        self, prepare: Callable[[], list[Tensor]], empty: Sequence[Tensor], operation: str
    ) -> list[Tensor]:
        """Send items to their owners; returns what all ranks sent here, in rank order.

        If any rank cannot prepare its items, all ranks raise before anything is written.

        Args:
            prepare: Returns the owner of each item, and the tensors to send, one entry per item.
            empty: The same for no items.
            operation: The name of the operation, for errors.
        """
        refused: Exception | None = None
        try:
            owners, *tensors = prepare()
        except Exception as error:
            refused = error
            owners, *tensors = empty
        places = places_by_owner(owners, self.ranks.size)
        outgoing = [[values[place] for values in tensors] for place in places]
        received, notes = swap_tensors(
            self.ranks, outgoing, [int(refused is not None)], operation, self._facts
        )
        if refused is not None:
            raise refused
        for rank, (has_refused,) in enumerate(notes):
            if has_refused:
                raise DataError(f"rank {rank} has items that cannot be stored: nothing was written")
        return [torch.cat(parts) for parts in zip(*received, strict=True)]

    def _sum_over_ranks(self, *numbers: int) -> list[int]:
        """The sum of each number over all ranks."""
        counts = torch.tensor([numbers] * self.ranks.size, device=self.device)
        sums: list[int] = self.ranks.swap_counts(counts).sum(dim=0).tolist()
        return sums

    def _log_weight(self) -> float:
        """The log of 1/α: of how many items of the corpus each held item stands for."""
        if self.corpus_size is None or not self.num_held:
            return 0.0
        return math.log(self.corpus_size / self.num_held)

    @property
    def _first_row(self) -> int:
        return self.shard.index * self.num_items_here

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ShardedNegativeCache:
        """Move this rank's shard too."""
        super()._apply(fn, recurse)
        self.own._apply(fn, recurse)
        return self

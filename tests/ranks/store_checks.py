"""Checks for stores that several ranks share; every rank of a group runs them together.

The ranks may be processes (`outsize.ranks.collectives.ProcessRanks`) or threads (`run_as_ranks`).
Every rank draws the steps of all ranks from seeds. So each can check its own reads against the
writes of the others without further messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from outsize.contracts import RowCounts, RowStore, RowUpdate
from outsize.kernels.rows.updates import SGDRule, UpdateRule
from outsize.ranks.collectives import RankGroup
from outsize.spec import Init, TableSpec
from outsize.stores import CachedStore, OverlappedStore, ShardedStore


@dataclass(frozen=True)
class TraceStep:
    """The reads and writes of one rank in a step.

    Attributes:
        reads: Rows it reads.
        writes: The rows among them that it then updates.
        flushes: Whether all ranks flush afterwards.
    """

    reads: Tensor
    writes: Tensor
    flushes: bool


def draw_trace(seed: int, rank: int, num_rows: int, num_steps: int) -> list[TraceStep]:
    """Skewed reads and writes of one rank; some steps are empty. All ranks flush together."""
    mine = Generator().manual_seed(seed * 1000 + rank)
    ours = Generator().manual_seed(seed)
    steps: list[TraceStep] = []
    for _ in range(num_steps):
        size = int(torch.randint(13, (), generator=mine))
        reads = (torch.rand(size, generator=mine) ** 2 * num_rows).long().unique()
        writes = reads[torch.rand(reads.shape[0], generator=mine) < 0.8]
        steps.append(TraceStep(reads, writes, bool(torch.rand((), generator=ours) < 0.05)))
    return steps


def no_update_is_lost_and_staleness_is_bounded(
    ranks: RankGroup,
    seed: int,
    read_staleness: float,
    write_staleness: float,
    eviction: str,
    num_slots: int,
    num_owners: int | None = None,
    num_rows: int = 40,
    num_steps: int = 25,
) -> None:
    """Training reads miss no more updates than the bounds allow; evaluation reads miss none.

    An update of rank j adds 1 to column j of a row, so the row shows how many updates of each rank
    it has seen.
    """
    spec = TableSpec("rows", num_rows, ranks.size, Init(std=0.0))
    inner = ShardedStore([spec], group=ranks, num_owners=num_owners)
    store = CachedStore(inner, num_slots, read_staleness, write_staleness, eviction)
    store.bind(SGDRule(1.0))
    traces = [draw_trace(seed, rank, num_rows, num_steps) for rank in range(ranks.size)]
    written = torch.zeros(num_rows, ranks.size, dtype=torch.int64)
    others = ranks.size - 1
    overall = read_staleness + others * write_staleness if others else 0
    for number, steps in enumerate(zip(*traces, strict=True)):
        mine = steps[ranks.rank]
        missed = written[mine.reads] - store.exchange(None, mine.reads).rows[0].long()
        assert (missed >= 0).all(), "an update was counted twice"
        assert (missed[:, ranks.rank] == 0).all(), "a worker missed its own update"
        assert (missed <= read_staleness + write_staleness).all(), (
            "missed too many updates of one worker"
        )
        assert (missed.sum(dim=1) <= overall).all(), "missed too many updates of all others"
        gradients = torch.zeros(mine.writes.shape[0], ranks.size)
        gradients[:, ranks.rank] = -float(ranks.size)
        store.submit(RowUpdate(mine.writes, (gradients,), torch.ones_like(mine.writes)))
        for rank, step in enumerate(steps):
            written[step.writes, rank] += 1
        if number % 5 == 0:
            current = store.read(torch.arange(num_rows)).long()
            assert torch.equal(current, written), "an evaluation read missed a pending update"
        if mine.flushes:
            store.flush()
    store.flush()
    assert torch.equal(store.read(torch.arange(num_rows)).long(), written), "an update was lost"
    counts = store.take_counts()
    lag = counts.largest_lag
    assert lag is None or lag <= read_staleness, "the reported lag exceeds the bound"


def overlapped_reads_are_one_step_late(
    ranks: RankGroup,
    seed: int,
    cache: tuple[int, float, float, str] | None,
    num_rows: int = 40,
    num_steps: int = 20,
) -> None:
    """A read that was started one batch ahead misses the last step, and else what the cache may.

    Rows count updates, as in `no_update_is_lost_and_staleness_is_bounded`. Evaluation reads and
    flushes miss nothing, and after a flush nor does the next read.
    """
    spec = TableSpec("rows", num_rows, ranks.size, Init(std=0.0))
    inner: RowStore = ShardedStore([spec], group=ranks)
    read, write = (0.0, 0.0) if cache is None else cache[1:3]
    store = OverlappedStore(inner if cache is None else CachedStore(inner, *cache))
    store.bind(SGDRule(1.0))
    traces = [draw_trace(seed, rank, num_rows, num_steps) for rank in range(ranks.size)]
    steps = list(zip(*traces, strict=True))
    written = torch.zeros(num_rows, ranks.size, dtype=torch.int64)
    before = written.clone()  # without the last step
    others = ranks.size - 1
    store.prefetch(steps[0][ranks.rank].reads)
    for number, step in enumerate(steps):
        mine = step[ranks.rank]
        if number + 1 < num_steps:
            store.prefetch(steps[number + 1][ranks.rank].reads)
        (rows,) = store.checkout(mine.reads)
        missed = before[mine.reads] - rows.detach().long()
        assert (missed >= 0).all(), "an update was counted twice, or came too early"
        assert (missed[:, ranks.rank] == 0).all(), "a worker missed more than its last update"
        assert (missed <= read + write).all(), "missed too many updates of one worker"
        late = (written[mine.reads] - rows.detach().long()).sum(dim=1)
        own = (written - before)[mine.reads, ranks.rank]
        most = read + others * (write + 1) if others else 0
        assert (late - own <= most).all(), "missed too many updates of all others"
        gradients = torch.zeros(mine.writes.shape[0], ranks.size)
        gradients[:, ranks.rank] = -float(ranks.size)
        store.submit(RowUpdate(mine.writes, (gradients,), torch.ones_like(mine.writes)))
        before = written.clone()
        for rank, theirs in enumerate(step):
            written[theirs.writes, rank] += 1
        if number % 5 == 0:
            current = store.read(torch.arange(num_rows)).long()
            assert torch.equal(current, written), "an evaluation read missed a pending update"
        if mine.flushes:
            store.flush()
            before = written.clone()
    store.flush()
    assert torch.equal(store.read(torch.arange(num_rows)).long(), written), "an update was lost"
    counts = store.take_counts()
    assert counts is not None
    assert counts.largest_lag is None or counts.largest_lag <= read, "the lag exceeds the bound"
    assert counts.wait_s is not None
    store.close()


def trained_rows(
    ranks: RankGroup,
    rule: UpdateRule,
    *,
    seed: int = 0,
    num_owners: int | None = None,
    cache: tuple[int, float, float, str] | None = None,
    wire: str = "float32",
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """All rows that a short training reads, then its final tables, for bitwise comparisons.

    Args:
        ranks: The ranks that train.
        rule: The update rule.
        seed: Seed of the ids and gradients.
        num_owners: Number of ranks that own rows.
        cache: `num_rows`, `read_staleness`, `write_staleness` and `eviction` of a `CachedStore`;
            `None` for no cache.
        wire: Wire format of rows and gradients.
        dtype: Type of the rows.
    """
    store = _store(ranks, rule, num_owners, cache, wire, dtype)
    found = _train(store, ranks, seed)
    store.flush()
    return [*found, *read_all(store)]


def _store(
    ranks: RankGroup,
    rule: UpdateRule,
    num_owners: int | None,
    cache: tuple[int, float, float, str] | None,
    wire: str,
    dtype: torch.dtype = torch.float32,
) -> RowStore:
    sizes = {"wide": (60, 5), "thin": (30, 3), "small": (3, 5)}
    specs = [TableSpec(name, *size, dtype=dtype) for name, size in sizes.items()]
    store: RowStore = ShardedStore(specs, group=ranks, num_owners=num_owners, wire=wire)
    if cache is not None:
        store = CachedStore(store, *cache)
    store.bind(rule)
    return store


def _train(
    store: RowStore, ranks: RankGroup, seed: int, num_steps: int = 25, evaluates: bool = False
) -> list[Tensor]:
    """All rows that a short training reads."""
    everything = torch.arange(store.layout.num_rows)
    generator = Generator().manual_seed(seed * 1000 + ranks.rank)
    found: list[Tensor] = []
    for step in draw_trace(seed, ranks.rank, store.layout.num_rows, num_steps):
        rows = store.exchange(None, step.reads).rows
        gradients = tuple(torch.randn(part.shape, generator=generator) for part in rows)
        store.submit(RowUpdate(step.reads, gradients, torch.ones_like(step.reads)))
        found += rows
        if evaluates:
            store.read(everything[:2], "small")
            store.peek(everything[ranks.rank :: 2])
    return found


def read_all(store: RowStore) -> list[Tensor]:
    """All tables of a store, by evaluation reads."""
    return [store.read(torch.arange(spec.num_rows), spec.name) for spec in store.layout.specs]


def equal_bits(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether two lists of tensors are equal bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def cache_without_staleness_changes_no_bit(
    ranks: RankGroup, rule: UpdateRule, eviction: str, dtype: torch.dtype = torch.float32
) -> None:
    """With both bounds 0, all reads and the final tables equal those without a cache."""
    plain = trained_rows(ranks, rule, dtype=dtype)
    cached = trained_rows(ranks, rule, cache=(20, 0, 0, eviction), dtype=dtype)
    assert equal_bits(plain, cached)


def evaluation_reads_do_not_change_training(
    ranks: RankGroup,
    rule: UpdateRule,
    wire: str,
    cache: tuple[int, float, float, str] | None = None,
) -> None:
    """Training with `read` and `peek` after each step equals training without, bit for bit."""
    plain, evaluated = (_store(ranks, rule, None, cache, wire) for _ in range(2))
    reads = [_train(plain, ranks, 0, 12), _train(evaluated, ranks, 0, 12, evaluates=True)]
    assert equal_bits(*reads), "an evaluation read changed the training"
    buffers = [[value for _, value in sorted(s.state_dict().items())] for s in (plain, evaluated)]
    assert equal_bits(*buffers), "an evaluation read changed the store"
    counts = [replace(s.take_counts() or RowCounts(), exchange_s=0.0) for s in (plain, evaluated)]
    assert counts[0] == counts[1], "an evaluation read was counted"
    for store in (plain, evaluated):
        store.flush()
    assert equal_bits(read_all(plain), read_all(evaluated))


def number_of_owners_changes_no_bit(
    ranks: RankGroup, rule: UpdateRule, dtype: torch.dtype = torch.float32
) -> None:
    """The same workers give the same tables, whether one rank owns all rows or each a shard."""
    everyone = trained_rows(ranks, rule, dtype=dtype)
    assert equal_bits(everyone, trained_rows(ranks, rule, num_owners=1, dtype=dtype))
    cache = (20, 0, 0, "lru")
    cached = trained_rows(ranks, rule, num_owners=1, cache=cache, dtype=dtype)
    assert equal_bits(everyone, cached)

"""Random histories of a cached store against an exact model of what a read may miss.

The model is the protocol in the docstring of `outsize.stores.cached`, written down as counts: an
update of rank j adds 1 to column j of a row, so each row shows how many updates of each rank it has
seen. All ranks draw the steps of all ranks, and check their own reads without further messages.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.torture.trial import SURVIVED, Trial, require
from outsize.contracts import RowStore, RowUpdate
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule, UpdateRule
from outsize.ranks.collectives import RankGroup
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.spec import Init, TableSpec
from outsize.stores import EVICTION, WIRES, CachedStore, ShardedStore

_SHARES_LOST = {"float32": 0.0, "bfloat16": 1 / 250, "int8": 1 / 250}
"""What a wire may leave out: shares of all gradients of a row, none of which may have a copy."""
_NOISE = 1e-4  # of sums in float32


@dataclass(frozen=True)
class Setting:
    """How the stores of a history are built.

    Attributes:
        size: Number of ranks.
        num_owners: Number of ranks that own rows.
        num_rows: Rows of the table.
        num_slots: Copies per rank.
        read: The read staleness.
        write: The write staleness.
        eviction: The eviction policy.
        wire: The wire format.
        seed: Seed of the steps.
    """

    size: int
    num_owners: int
    num_rows: int
    num_slots: int
    read: float
    write: float
    eviction: str
    wire: str
    seed: str

    def store(self, ranks: RankGroup, rule: UpdateRule, dim: int) -> CachedStore:
        """The store of one rank."""
        store = CachedStore(
            self.plain(ranks, dim), self.num_slots, self.read, self.write, self.eviction
        )
        store.bind(rule)
        return store

    def plain(self, ranks: RankGroup, dim: int) -> ShardedStore:
        """The store without a cache."""
        spec = TableSpec("rows", self.num_rows, dim, Init(std=0.0))
        return ShardedStore([spec], group=ranks, num_owners=self.num_owners, wire=self.wire)


def run(trial: Trial, describe: Callable[[str], None]) -> tuple[str, str]:
    """One history of 40 to 100 steps."""
    draw = trial.draw
    size = draw.randint(1, 4)
    num_rows = draw.choice([6, 40, 200])
    way = draw.choice([_check_counts, _check_counts, _check_sums, _check_bits])
    setting = Setting(
        size=size,
        num_owners=draw.randint(1, size),
        num_rows=num_rows,
        num_slots=draw.choice([1, 5, num_rows]),
        read=0 if way is _check_bits else draw.choice([0, 1, 3, 10, math.inf]),
        write=0 if way is _check_bits else draw.choice([0, 1, 2, 5, math.inf]),
        eviction=draw.choice(sorted(EVICTION)),
        wire=draw.choice(sorted(WIRES)) if way is _check_sums else "float32",
        seed=f"{trial.seed} {trial.number}",
    )
    num_steps = draw.randint(40, 100)
    describe(f"{way.__name__[1:]}, {num_steps} steps, {setting}")
    run_as_ranks(size, lambda ranks: way(ranks, setting, num_steps))
    return SURVIVED, ""


def _choose_rows(draw: random.Random, num_rows: int) -> Tensor:
    """Rows of one rank in one step, the first ones more often; may be empty."""
    count = draw.choice([0, 1, 4, 12])
    found = {int(draw.random() ** 2 * num_rows) for _ in range(count)}
    return torch.tensor(sorted(found), dtype=torch.int64)


class _History:
    """The steps of all ranks, drawn alike on every rank."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._draw = random.Random(setting.seed)

    def operation(self) -> str:
        return self._draw.choices(
            ["read", "submit", "exchange", "preview", "flush", "save"], [8, 8, 3, 2, 1, 0.5]
        )[0]

    def rows(self) -> list[Tensor]:
        """The rows of each rank."""
        return [_choose_rows(self._draw, self._setting.num_rows) for _ in range(self._setting.size)]

    def flag(self) -> bool:
        return self._draw.random() < 0.5


def _moved(store: CachedStore, fresh: CachedStore, with_copies: bool) -> CachedStore:
    """Another store with the rows of this one, as after a checkpoint; call `flush` before."""
    for old, new in zip(store.parts(), fresh.parts(), strict=True):
        for name, value in old.tensors.items():
            new.tensors[name].copy_(value)
    state = {name: value.clone() for name, value in store.rank_state().items()}
    if with_copies:
        require(fresh.fits_rank_state(state), "a saved state does not fit")
        fresh.load_rank_state(state)
    return fresh


def _check_counts(ranks: RankGroup, setting: Setting, num_steps: int) -> None:
    """Every read misses what it may, and no more; every preview and flush misses nothing."""
    rule = SGDRule(1.0)
    store = setting.store(ranks, rule, setting.size)
    written = torch.zeros(setting.num_rows, setting.size, dtype=torch.int64)
    everything = torch.arange(setting.num_rows)
    history = _History(setting)
    for _ in range(num_steps):
        operation = history.operation()
        if operation in ("submit", "exchange"):
            changed = history.rows()
            for rank, rows in enumerate(changed):
                written[rows, rank] += 1
            mine = _ones(changed[ranks.rank], ranks.rank, setting.size)
        if operation == "submit":
            store.submit(mine)
        elif operation in ("read", "exchange"):
            asked = history.rows()[ranks.rank]
            reply = store.exchange(mine if operation == "exchange" else None, asked)
            _require_bounds(store, asked, reply.rows[0], written, setting, ranks.rank)
        elif operation == "preview":
            extra = history.rows()
            expected = written.clone()
            update = None
            if history.flag():
                for rank, rows in enumerate(extra):
                    expected[rows, rank] += 1
                update = _ones(extra[ranks.rank], ranks.rank, setting.size)
            found = store.preview(update, everything)[0].round().long()
            require(torch.equal(found, expected), "a preview is not what a flush would leave")
        else:
            store.flush()
            found = store.exchange(None, everything).rows[0].round().long()
            require(torch.equal(found, written), "a read after a flush missed an update")
            if operation == "save":
                store.flush()
                fresh = setting.store(ranks, rule, setting.size)
                store = _moved(store, fresh, history.flag())
    store.flush()
    found = store.read(everything).round().long()
    require(torch.equal(found, written), "an update was lost, or counted twice")
    lag = store.take_counts().largest_lag
    require(lag is None or lag <= setting.read, f"the reported lag {lag} exceeds the bound")


def _ones(rows: Tensor, rank: int, size: int) -> RowUpdate:
    gradients = torch.zeros(rows.shape[0], size)
    gradients[:, rank] = -float(size)  # the owner averages over ranks
    return RowUpdate(rows, (gradients,), torch.ones_like(rows))


def _require_bounds(
    store: CachedStore, asked: Tensor, rows: Tensor, written: Tensor, setting: Setting, rank: int
) -> None:
    """Fail unless a read missed at most what the protocol allows."""
    missed = written[asked] - rows.round().long()
    others = setting.size - 1
    is_remote = store.transport.is_remote(asked)
    require(bool((missed >= 0).all()), "an update was counted twice")
    require(bool((missed[:, rank] == 0).all()), "a worker missed its own update")
    for own, most_each, most in (
        (is_remote, setting.read + setting.write, setting.read + _times(others - 1, setting.write)),
        (~is_remote, setting.write, _times(others, setting.write)),
    ):
        part = missed[own]
        require(bool((part <= most_each).all()), "missed too many updates of one worker")
        require(bool((part.sum(1) <= most).all()), "missed too many updates of all others")


def _times(count: int, bound: float) -> float:
    return count * bound if count > 0 else 0.0


def _check_sums(ranks: RankGroup, setting: Setting, num_steps: int) -> None:
    """Whatever the wire rounds, flushed rows are the sum of all updates, to the wire's promise."""
    dim = 3
    rule = SGDRule(1.0)
    store = setting.store(ranks, rule, dim)
    total = torch.zeros(setting.num_rows, dim, dtype=torch.float64)
    weight = torch.zeros(setting.num_rows, dtype=torch.float64)
    everything = torch.arange(setting.num_rows)
    history = _History(setting)
    drawn = torch.Generator().manual_seed(len(setting.seed) + hash(setting.num_slots))
    for _ in range(num_steps):
        operation = history.operation()
        changed = history.rows() if operation in ("submit", "exchange") else []
        gradients = [torch.randn(rows.shape[0], dim, generator=drawn) for rows in changed]
        for rows, gradient in zip(changed, gradients, strict=True):
            total[rows] -= gradient.double() / setting.size
            weight[rows] += gradient.abs().amax(1).double() / setting.size
        if changed:
            rows = changed[ranks.rank]
            mine = RowUpdate(rows, (gradients[ranks.rank],), torch.ones_like(rows))
        if operation == "submit":
            store.submit(mine)
        elif operation in ("read", "exchange"):
            store.exchange(mine if operation == "exchange" else None, history.rows()[ranks.rank])
        elif operation == "preview":
            store.preview(None, everything)
        else:
            store.flush()
            if operation == "save":
                store = _moved(store, setting.store(ranks, rule, dim), history.flag())
        if operation in ("flush", "save", "preview"):
            error = (store.read(everything).double() - total).abs().amax(1)
            allowed = _NOISE + _SHARES_LOST[setting.wire] * weight
            require(bool((error <= allowed).all()), f"off by {float((error - allowed).max())}")
    store.flush()
    error = (store.read(everything).double() - total).abs().amax(1)
    require(
        bool((error <= _NOISE + _SHARES_LOST[setting.wire] * weight).all()),
        f"off by {float(error.max())}",
    )


def _check_bits(ranks: RankGroup, setting: Setting, num_steps: int) -> None:
    """With both bounds 0, every read is that of a store without a cache, bit for bit."""
    dim = 3
    number = random.Random(setting.seed).randrange(4)
    rule = [SGDRule(0.3), AdagradRule(0.3), AdagradRule(0.3, row_wise=True), AdamRule(0.3)][number]
    plain: RowStore = setting.plain(ranks, dim)
    plain.bind(rule)
    cached = setting.store(ranks, rule, dim)
    everything = torch.arange(setting.num_rows)
    history = _History(setting)
    drawn = torch.Generator().manual_seed(1000 * len(setting.seed) + ranks.rank)
    for _ in range(num_steps):
        operation = history.operation()
        if operation in ("read", "submit", "exchange"):
            asked = history.rows()[ranks.rank]
            found = [store.exchange(None, asked).rows[0] for store in (plain, cached)]
            require(torch.equal(*found), "a read differs from one without a cache")
            gradients = torch.randn(asked.shape[0], dim, generator=drawn)
            for store in (plain, cached):
                store.submit(RowUpdate(asked, (gradients,), torch.ones_like(asked)))
        elif operation == "preview":
            found = [store.peek(everything)[0] for store in (plain, cached)]
            require(torch.equal(*found), "a preview differs from one without a cache")
        else:
            for store in (plain, cached):
                store.flush()
            if operation == "save":
                cached = _moved(cached, setting.store(ranks, rule, dim), history.flag())
    for store in (plain, cached):
        store.flush()
    require(torch.equal(plain.read(everything), cached.read(everything)), "rows differ at the end")

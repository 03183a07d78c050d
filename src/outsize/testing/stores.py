"""Checks for stores, in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from outsize.contracts import RowCounts, RowStore, RowUpdate
from outsize.errors import ConfigError, OutsizeError
from outsize.initialization import initial_rows
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule, UpdateRule
from outsize.spec import TableSpec
from outsize.testing.checks import checks_in, refusal

MakeStore = Callable[[Sequence[TableSpec]], RowStore]
_WIDE = TableSpec("wide", num_rows=50, dim=4)
_OTHER = TableSpec("other", num_rows=7, dim=4)
_THIN = TableSpec("thin", num_rows=20, dim=2)
_NONE = torch.empty(0, dtype=torch.int64)


def _store(make: MakeStore) -> RowStore:
    store = make([_WIDE, _THIN, _OTHER])
    store.bind(SGDRule(learning_rate=0.5))
    return store


def rows_start_as_the_seed_says(make: MakeStore) -> None:
    """Initial rows are the same function of (seed, table, row, column) in all stores."""
    store = make([_WIDE, _THIN, _OTHER])
    for spec in (_WIDE, _THIN, _OTHER):
        ids = torch.arange(spec.num_rows)
        assert torch.equal(store.read(ids, spec.name), initial_rows(spec, ids, seed=0))


def reads_take_any_shape_and_change_nothing(make: MakeStore) -> None:
    """`read` returns `(*ids.shape, dim)`, allows repeats, and changes neither rows nor clocks."""
    store = _store(make)
    ids = torch.tensor([[3, 3], [0, 49]])
    first = store.read(ids, "wide")
    assert first.shape == (2, 2, 4)
    assert torch.equal(first[0, 0], first[0, 1])
    assert torch.equal(store.read(ids, "wide"), first)
    clocks = store.exchange(None, torch.tensor([0, 3, 49])).clocks
    assert clocks.tolist() == [0, 0, 0]


def evaluation_reads_do_not_change_training(make: MakeStore) -> None:
    """Training with `read` and `peek` after each step equals training without, bit for bit.

    This covers rows, clocks, optimizer state, the store's buffers and its counts. Rules that a
    store refuses are skipped.
    """
    for rule in (SGDRule(0.3), AdagradRule(0.3), AdagradRule(0.3, row_wise=True), AdamRule(0.3)):
        (plain, counts), (evaluated, other) = (_trained(make, rule, e) for e in (False, True))
        same = all(torch.equal(a, b) for a, b in zip(plain, evaluated, strict=True))
        assert same, f"{rule}: an evaluation read changed the training"
        assert counts == other, f"{rule}: an evaluation read was counted"


def evaluation_reads_include_submitted_updates(make: MakeStore) -> None:
    """`peek` and `read` include updates that the store still holds, before any flush."""
    store = _store(make)
    generator = Generator().manual_seed(0)
    expected = store.read(torch.arange(_WIDE.num_rows), "wide")
    for _ in range(12):
        ids = (torch.rand(_WIDE.num_rows, generator=generator) < 0.3).nonzero().flatten()
        store.exchange(None, ids + store.layout.offsets["wide"])
        gradients = torch.randn(ids.shape[0], 4, generator=generator)
        store.add(ids, gradients, "wide")
        expected[ids] -= 0.5 * gradients
        found = store.read(torch.arange(_WIDE.num_rows), "wide")
        torch.testing.assert_close(found, expected)


def add_merges_repeats_into_one_update(make: MakeStore) -> None:
    """A row that occurs several times gets the sum of its gradients and one tick."""
    store = _store(make)
    before = store.read(torch.tensor([4, 5]), "wide")
    gradients = torch.stack([torch.full((4,), float(i)) for i in (1, 2, 4)])
    store.add(torch.tensor([5, 4, 5]), gradients, "wide")
    store.flush()
    after = store.read(torch.tensor([4, 5]), "wide")
    torch.testing.assert_close(after - before, torch.tensor([[-1.0] * 4, [-2.5] * 4]))
    offset = store.layout.offsets["wide"]
    assert store.exchange(None, torch.tensor([4, 5]) + offset).clocks.tolist() == [1, 1]


def exchange_applies_the_update_before_it_replies(make: MakeStore) -> None:
    """Rows requested in the same exchange include the pushed gradients."""
    store = _store(make)
    ids = torch.tensor([1, 2]) + store.layout.offsets["wide"]
    before = store.exchange(None, ids).rows[0]
    reply = store.exchange(_update(store, ids, torch.ones(2, 4)), ids)
    torch.testing.assert_close(reply.rows[0], before - 0.5)
    assert reply.clocks.tolist() == [1, 1]


def exchange_sends_only_rows_newer_than_asked(make: MakeStore) -> None:
    """A row is sent if and only if its clock is greater than the asked clock."""
    store = _store(make)
    ids = torch.tensor([1, 2, 3]) + store.layout.offsets["wide"]
    store.exchange(_update(store, ids[:2], torch.ones(2, 4)), _NONE)
    reply = store.exchange(None, ids, torch.tensor([0, 1, 0]))
    assert reply.stale.tolist() == [True, False, False]
    assert reply.clocks.tolist() == [1]
    assert reply.rows[0].shape == (1, 4)
    everything = store.exchange(None, ids, torch.tensor([-1, -1, -1]))
    assert everything.stale.all()


def clocks_advance_by_ticks(make: MakeStore) -> None:
    """An update that covers several batches advances the clock by their number."""
    store = _store(make)
    ids = torch.tensor([7]) + store.layout.offsets["wide"]
    update = _update(store, ids, torch.ones(1, 4))
    store.exchange(RowUpdate(update.ids, update.gradients, torch.tensor([5])), _NONE)
    assert store.exchange(None, ids).clocks.tolist() == [5]


def state_travels_with_rows(make: MakeStore) -> None:
    """The reply to a request with clocks includes the optimizer state of the sent rows."""
    store = make([_WIDE])
    store.bind(AdagradRule(learning_rate=0.1, row_wise=True))
    ids = torch.tensor([3])
    store.exchange(_update(store, ids, torch.full((1, 4), 2.0)), _NONE)
    reply = store.exchange(None, ids, torch.tensor([0]))
    torch.testing.assert_close(reply.state[0]["sum"], torch.tensor([[4.0]]))


def sums_over_batches_use_their_squares(make: MakeStore) -> None:
    """Adagrad adds Σg² of merged batches, not (Σg)²."""
    store = make([_WIDE])
    rule = AdagradRule(learning_rate=1.0, eps=0.0)
    store.bind(rule)
    ids = torch.tensor([3])
    before = store.read(ids)
    parts = [torch.full((1, 4), 3.0), torch.full((1, 4), 4.0)]
    squares = sum((rule.square(part) for part in parts), torch.zeros(1, 4))
    update = RowUpdate(ids, (parts[0] + parts[1],), torch.tensor([2]), (squares,))
    store.exchange(update, _NONE)
    store.flush()
    torch.testing.assert_close(store.read(ids), before - 7.0 / 5.0)


def checkout_gives_leaves_whose_gradients_become_pending(make: MakeStore) -> None:
    """Backward through checked-out rows gives one merged update and changes no row."""
    store = _store(make)
    ids = torch.tensor([1, 2]) + store.layout.offsets["wide"]
    first, second = store.checkout(ids), store.checkout(ids[1:])
    unused = store.checkout(ids)
    before = store.read(torch.tensor([1, 2]), "wide")
    group = store.layout.group_of("wide")
    (first[group].sum() + 3 * second[group].sum()).backward()
    assert unused[group].grad is None
    update = store.pending.merge()
    assert update is not None
    assert update.ids.tolist() == ids.tolist()
    assert update.ticks.tolist() == [1, 1]
    torch.testing.assert_close(update.gradients[group], torch.tensor([[1.0] * 4, [4.0] * 4]))
    assert torch.equal(store.read(torch.tensor([1, 2]), "wide"), before)
    store.pending.clear()
    assert store.pending.merge() is None


def bad_requests_are_refused(make: MakeStore) -> None:
    """Unknown tables, ids out of range, wrong shapes, NaN, another rule: nothing is applied."""
    store = _store(make)
    before = store.read(torch.arange(50), "wide")
    nan = torch.full((1, 4), float("nan"))
    one = torch.tensor([1])
    requests: tuple[tuple[str, Callable[[], object]], ...] = (
        ("wide", lambda: store.read(one)),
        ("nowhere", lambda: store.read(one, "nowhere")),
        ("50", lambda: store.read(torch.tensor([50]), "wide")),
        ("-1", lambda: store.add(torch.tensor([-1]), torch.ones(1, 4), "wide")),
        ("(1, 4)", lambda: store.add(one, torch.ones(1, 2), "wide")),
        ("NaN", lambda: store.add(one, nan, "wide")),
        ("AdamRule", lambda: store.bind(AdamRule(0.1))),
    )
    for fact, request in requests:
        message = refusal(OutsizeError, request)
        assert fact in message, f"{fact!r} not in {message!r}"
    assert torch.equal(store.read(torch.arange(50), "wide"), before)


def state_dict_restores_everything(make: MakeStore) -> None:
    """Rows, clocks and optimizer state survive a round trip into a new store."""
    saved, other = make([_WIDE]), make([_WIDE])
    for store in (saved, other):
        store.bind(AdagradRule(learning_rate=0.1))
    saved.add(torch.tensor([1, 9]), torch.ones(2, 4))
    saved.flush()
    other.load_state_dict(saved.state_dict())
    for store in (saved, other):
        store.add(torch.tensor([9]), torch.ones(1, 4))
        store.flush()
    ids = torch.arange(50)
    assert torch.equal(saved.read(ids), other.read(ids))
    assert torch.equal(saved.exchange(None, ids).clocks, other.exchange(None, ids).clocks)


def half_keeps_rows_and_state(make: MakeStore) -> None:
    """`.half()` on a model does not change rows or a tiny optimizer state."""
    store = make([_WIDE])
    store.bind(AdagradRule(learning_rate=0.1))
    store.add(torch.tensor([1]), torch.full((1, 4), 1e-4))
    store.flush()
    before = store.read(torch.tensor([1]))
    store.half()
    assert torch.equal(store.read(torch.tensor([1])), before)
    state = store.exchange(None, torch.tensor([1]), torch.tensor([0])).state[0]["sum"]
    torch.testing.assert_close(state, torch.full((1, 4), 1e-8))


def memory_use_counts_every_byte(make: MakeStore) -> None:
    """Each row is counted once, and the tables take no more than the store."""
    store = _store(make)
    use = store.memory_use()
    assert use.num_parameters == 50 * 4 + 7 * 4 + 20 * 2
    assert use.bytes_of("parameters") == 4 * use.num_parameters
    assert sum(part.total_bytes for part in store.memory_by_table().values()) <= use.total_bytes


def closing_twice_is_fine(make: MakeStore) -> None:
    """`close` may be called again, also after `with store`; rows can still be saved."""
    store = _store(make)
    store.add(torch.tensor([1]), torch.ones(1, 4), "wide")
    store.flush()
    with store as entered:
        assert entered is store
        expected = [part.tensors["rows"].clone() for part in store.parts()]
    store.close()
    assert all(
        torch.equal(part.tensors["rows"], rows)
        for part, rows in zip(store.parts(), expected, strict=True)
    )


def leaving_after_an_error_raises_nothing_else(make: MakeStore) -> None:
    """An error inside `with store` comes out as it is; after it the store can be closed."""
    store = _store(make)
    try:
        with store:
            raise KeyError("the user's own")
    except KeyError:
        store.leave()
        store.close()
    else:
        raise AssertionError("the error was swallowed")


def _trained(
    make: MakeStore, rule: UpdateRule, evaluates: bool
) -> tuple[list[Tensor], RowCounts | None]:
    """The reads, final state and counts of a short training; nothing for a refused rule."""
    store = make([_WIDE, _THIN, _OTHER])
    try:
        store.bind(rule)
    except ConfigError:
        return [], None
    ours, extra = (Generator().manual_seed(seed) for seed in (0, 1))
    found: list[Tensor] = []
    for _ in range(20):
        ids = _some_ids(store, ours)
        reply = store.exchange(None, ids)
        gradients = tuple(torch.randn(part.shape, generator=ours) for part in reply.rows)
        store.submit(RowUpdate(ids, gradients, torch.ones_like(ids)))
        found += [*reply.rows, reply.clocks]
        if evaluates:
            store.peek(_some_ids(store, extra))
            store.read(torch.arange(_WIDE.num_rows), "wide")
    counts = store.take_counts()
    found += [value.clone() for _, value in sorted(store.state_dict().items())]
    everything = torch.arange(store.layout.num_rows)
    reply = store.exchange(None, everything, torch.full_like(everything, -1))
    state = [part for group in reply.state for _, part in sorted(group.items())]
    found += [*reply.rows, reply.clocks, *state]
    return found, None if counts is None else replace(counts, exchange_s=0.0)


def _some_ids(store: RowStore, generator: Generator) -> Tensor:
    return (torch.rand(store.layout.num_rows, generator=generator) < 0.2).nonzero().flatten()


def _update(store: RowStore, ids: Tensor, gradients: Tensor) -> RowUpdate:
    group = store.layout.group_of("wide")
    parts = tuple(
        gradients if i == group else torch.empty(0, other.dim)
        for i, other in enumerate(store.layout.groups)
    )
    return RowUpdate(ids, parts, torch.ones_like(ids))


STORE_CHECKS: tuple[Callable[[MakeStore], None], ...] = checks_in(globals())

"""Compiled rounds equal the other rounds bit for bit, and send the messages of `Packing`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.contracts import RowLayout, RowUpdate
from outsize.kernels.compiled import numba_problem
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.spec import TableSpec
from outsize.stores import CachedStore, ShardedStore
from outsize.stores import sharded as sharded_module
from outsize.stores.compiled_rounds import compiled_round
from outsize.stores.local import LocalStore
from outsize.stores.merging import _merge
from outsize.stores.packing import Packing, RowRequest
from outsize.stores.wire import WIRES

NUM_ROWS = 90
RULES = {
    "sgd": SGDRule(0.1, compiled=True),
    "row-wise": AdagradRule(0.1, row_wise=True, compiled=True),
    "adagrad": AdagradRule(0.1),
    "adam": AdamRule(0.1, compiled=True),
}
pytestmark = pytest.mark.skipif(numba_problem() is not None, reason=f"{numba_problem()}")


@pytest.fixture(autouse=True)
def compiles_for_any_size(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")


def draw_ids(generator, most):
    num = int(torch.randint(most + 1, (), generator=generator))
    return torch.randperm(NUM_ROWS, generator=generator)[:num].sort().values


def draw_update(generator, dim, rule, ids, has_exact):
    gradients = torch.randn(len(ids), dim, generator=generator)
    gradients[:1] = 0.0
    ticks = torch.ones_like(ids)
    if rule.merges_batches:
        ticks = torch.randint(1, 4, ids.shape, generator=generator)
    squares = rule.square(gradients)
    exact = torch.rand(len(ids), generator=generator) < 0.3 if has_exact else None
    return RowUpdate(ids, (gradients,), ticks, None if squares is None else (squares * 2,), exact)


def train(ranks, dim, wire, rule, num_owners, has_clocks, has_exact, seed):
    """What three ranks read in a few rounds, their rows in the end, and the bytes they sent."""
    store = ShardedStore([TableSpec("t", NUM_ROWS, dim)], group=ranks, wire=wire,
                         num_owners=num_owners)  # fmt: skip
    store.bind(rule)
    generator = torch.Generator().manual_seed(10 * seed + ranks.rank)
    found = []
    for most in (60, 0, 1, NUM_ROWS):
        ids = draw_ids(generator, most)
        clocks = torch.randint(-1, 5, ids.shape, generator=generator) if has_clocks else None
        update = draw_update(generator, dim, rule, draw_ids(generator, most), has_exact)
        reply = store.exchange(update, ids, clocks)
        state = [part for group in reply.state for part in group.values()]
        found += [reply.stale, *reply.rows, reply.clocks, *state, torch.tensor(reply.behind or 9)]
    parts = [tensor for part in store.parts() for tensor in part.tensors.values()]
    counts = store.take_counts()
    return [*found, *parts], counts.sent_bytes, counts.local


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, 3, 8, 13, 16]),
    st.sampled_from(["float32", "int8"]),
    st.sampled_from(sorted(RULES)),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_compiled_round_equals_the_others(
    dim, wire, rule, num_owners, has_clocks, has_exact, seed
):
    def work(ranks):
        return train(ranks, dim, wire, RULES[rule], num_owners, has_clocks, has_exact, seed)

    taken = []

    def counted(*arguments):
        found = compiled_round(*arguments)
        taken.append(found is not None)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_module, "compiled_round", counted)
        compiled = run_as_ranks(3, work)
    assert taken, "no round was compiled"
    assert all(taken)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_module, "compiled_round", lambda *arguments: None)
        plain = run_as_ranks(3, work)
    for (values, sent, local), (expected, sent_expected, local_expected) in zip(
        compiled, plain, strict=True
    ):
        assert (sent, local) == (sent_expected, local_expected)
        for value, other in zip(values, expected, strict=True):
            torch.testing.assert_close(value, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_ranks_with_and_without_kernels_train_together(monkeypatch, wire):
    def work(ranks):
        return train(ranks, 5, wire, RULES["row-wise"], 3, True, True, 1)

    everywhere = run_as_ranks(3, work)
    by_rank = lambda *given: compiled_round(*given) if given[3] == 1 else None  # noqa: E731
    monkeypatch.setattr(sharded_module, "compiled_round", by_rank)
    for (values, *_), (expected, *_) in zip(run_as_ranks(3, work), everywhere, strict=True):
        assert all(torch.equal(*pair) for pair in zip(values, expected, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 4, 9, 24]), st.sampled_from(["float32", "int8"]), st.integers(0, 99))
def test_requests_have_the_bytes_of_packing(dim, wire, seed):
    rule, generator = RULES["row-wise"], torch.Generator().manual_seed(seed)
    owned = LocalStore([TableSpec("t", NUM_ROWS, dim)])
    owned.bind(rule)
    update = draw_update(generator, dim, rule, draw_ids(generator, 50), True)
    ids = draw_ids(generator, 50)
    clocks = torch.randint(-1, 1 << 33, ids.shape, generator=generator)
    made = compiled_round(owned, rule, WIRES[wire], 0, 3, 3, update, ids, clocks)
    messages, numbers = made.write_requests(ShardedStore([TableSpec("t", 9, 1)])._counts)
    packing = Packing(owned.layout, 3)
    for owner in (1, 2):
        own, asked = (torch.where(each % 3 == owner)[0] for each in (update.ids, ids))
        request = RowRequest(update.take(own), ids[asked], clocks[asked])
        if not own.numel():
            request = RowRequest(RowUpdate(ids[:0], (torch.empty(0, dim),), ids[:0]), ids[asked],
                                 clocks[asked])  # fmt: skip
        message, counts = packing.write_request(request, WIRES[wire], rule)
        assert numbers[owner] == [*counts, message.content.shape[0]]
        assert torch.equal(messages[owner], message.content)


def test_half_precision_and_bfloat16_are_left_to_the_other_rounds():
    rule, ids = RULES["sgd"], torch.arange(9)
    half = LocalStore([TableSpec("t", 9, 4, dtype=torch.float16)])
    full = LocalStore([TableSpec("t", 9, 4)])
    update = RowUpdate(ids, (torch.zeros(9, 4),), torch.ones_like(ids))
    assert compiled_round(half, rule, WIRES["int8"], 0, 2, 2, update, ids, None) is None
    assert compiled_round(full, rule, WIRES["bfloat16"], 0, 2, 2, update, ids, None) is None
    assert compiled_round(full, None, WIRES["int8"], 0, 2, 2, update, ids, None) is None
    assert compiled_round(full, rule, WIRES["int8"], 0, 2, 2, update, ids, None) is not None


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(RULES)), st.sampled_from([1, 5, 16]), st.integers(0, 99))
def test_two_updates_are_added_as_by_torch(name, dim, seed):
    rule, generator = RULES[name], torch.Generator().manual_seed(seed)
    layout = RowLayout([TableSpec("t", NUM_ROWS, dim)])
    updates = [draw_update(generator, dim, rule, draw_ids(generator, 40), i == 0) for i in (0, 1)]
    if any(not len(update.ids) for update in updates):
        return
    found = _merge(updates, layout, rule, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTSIZE_KERNELS", "torch")
        expected = _merge(updates, layout, rule, 1)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.ticks, expected.ticks)
    assert torch.equal(found.exact, expected.exact)
    assert torch.equal(found.gradients[0], expected.gradients[0])
    assert (found.squares is None) == (expected.squares is None)
    if found.squares is not None:
        assert torch.equal(found.squares[0], expected.squares[0])


def test_a_copy_that_was_dropped_or_replaced_is_looked_for_again():
    """An update finds the slots of its last read, unless a flush or a load came between."""

    def work(ranks):
        torch.manual_seed(ranks.rank)
        stores = [
            CachedStore(ShardedStore([TableSpec("t", NUM_ROWS, 4)], group=ranks), 20, 3, 3)
            for _ in range(2)
        ]
        for store in stores:
            store.bind(RULES["row-wise"])
        for step in range(12):
            ids = torch.randperm(NUM_ROWS)[:30].sort().values
            gradients = torch.randn(30, 4)
            rows = []
            for copy, store in enumerate(stores):
                rows.append(store.exchange(None, ids).rows[0])
                own = ids if copy == 0 else ids.clone()  # a tensor that it does not know
                if step % 5 == 4:
                    store.flush()
                    store.load_rank_state({k: v.clone() for k, v in store.rank_state().items()})
                store.submit(RowUpdate(own, (gradients,), torch.ones_like(ids)))
            assert torch.equal(*rows)

    run_as_ranks(3, work)

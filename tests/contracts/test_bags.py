import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from outsize.contracts import Bag, pool_rows
from outsize.errors import ConfigError, DataError
from outsize.spec import POOLINGS, TableSpec
from outsize.tables import build_table

NUM_ROWS = 6

ids = st.integers(0, NUM_ROWS - 1)
ragged_bags = st.lists(st.lists(ids, max_size=5), min_size=1, max_size=6)
# Torch itself does not take bags of length 0.
even_bags = st.tuples(st.integers(1, 5), st.integers(1, 4)).flatmap(
    lambda shape: st.lists(
        st.lists(ids, min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
    )
)


def ragged(bags):
    """Bags as flat values and the offsets that cut them."""
    starts = [sum(len(bag) for bag in bags[:i]) for i in range(len(bags))]
    values = [key for bag in bags for key in bag]
    return torch.tensor(values, dtype=torch.int64), torch.tensor(starts)


def draw(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def look_up_and_pool(table, bag, pooling, padding_id=None):
    flat = bag.flat(padding_id)
    return pool_rows(table[flat.values], flat.offsets, pooling, flat.weights)


def assert_same_function(ours, theirs, leaves):
    """Equal values, and equal gradients of a random projection."""
    torch.testing.assert_close(ours, theirs)
    projection = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(9)).double()
    found = torch.autograd.grad((ours * projection).sum(), leaves, retain_graph=True)
    expected = torch.autograd.grad((theirs * projection).sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@settings(deadline=None)
@given(ragged_bags, st.sampled_from(POOLINGS), st.none() | ids, st.integers(1, 4))
def test_ragged_bags_pool_like_embedding_bag(bags, pooling, padding_id, dim):
    values, offsets = ragged(bags)
    table = draw(NUM_ROWS, dim, seed=1)
    ours = look_up_and_pool(table, Bag(values, offsets), pooling, padding_id)
    theirs = F.embedding_bag(values, table, offsets, mode=pooling, padding_idx=padding_id)
    assert_same_function(ours, theirs, [table])


@settings(deadline=None)
@given(even_bags, st.sampled_from(POOLINGS), st.none() | ids)
def test_bags_of_equal_length_pool_like_embedding_bag(bags, pooling, padding_id):
    values = torch.tensor(bags)
    table = draw(NUM_ROWS, 3, seed=2)
    ours = look_up_and_pool(table, Bag(values), pooling, padding_id)
    theirs = F.embedding_bag(values, table, mode=pooling, padding_idx=padding_id)
    assert_same_function(ours, theirs, [table])


@settings(deadline=None)
@given(ragged_bags, st.none() | ids)
def test_weighted_ragged_bags_pool_like_embedding_bag(bags, padding_id):
    values, offsets = ragged(bags)
    table, weights = draw(NUM_ROWS, 3, seed=3), draw(values.numel(), seed=4)
    ours = look_up_and_pool(table, Bag(values, offsets, weights), "sum", padding_id)
    theirs = F.embedding_bag(
        values, table, offsets, mode="sum", padding_idx=padding_id, per_sample_weights=weights
    )
    # Without an id there is nothing a gradient of the weights could say.
    kept = padding_id is None or bool((values != padding_id).any())
    assert_same_function(ours, theirs, [table, weights] if kept and len(values) else [table])


@settings(deadline=None)
@given(even_bags)
def test_weighted_bags_of_equal_length_pool_like_embedding_bag(bags):
    values = torch.tensor(bags)
    table, weights = draw(NUM_ROWS, 3, seed=5), draw(*values.shape, seed=6)
    ours = look_up_and_pool(table, Bag(values, weights=weights), "sum")
    theirs = F.embedding_bag(values, table, mode="sum", per_sample_weights=weights)
    assert_same_function(ours, theirs, [table, weights])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_module_of_torch_gives_the_same(pooling):
    module = nn.EmbeddingBag(NUM_ROWS, 4, mode=pooling, padding_idx=2)
    values, offsets = torch.tensor([5, 2, 0, 0, 2, 1]), torch.tensor([0, 2, 2, 4, 5])
    ours = look_up_and_pool(module.weight, Bag(values, offsets), pooling, padding_id=2)
    torch.testing.assert_close(ours, module(values, offsets))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_one_id_each_pools_to_its_row(pooling):
    table, values = draw(NUM_ROWS, 3, seed=7), torch.tensor([3, 3, 0])
    assert torch.equal(look_up_and_pool(table, Bag(values), pooling), table[values])


def test_a_small_case_by_hand():
    rows = torch.tensor([[1.0, 8.0], [3.0, 2.0], [5.0, 5.0]])
    offsets = torch.tensor([0, 0, 2, 3])
    expected = {
        "sum": [[0.0, 0.0], [4.0, 10.0], [5.0, 5.0], [0.0, 0.0]],
        "mean": [[0.0, 0.0], [2.0, 5.0], [5.0, 5.0], [0.0, 0.0]],
        "max": [[0.0, 0.0], [3.0, 8.0], [5.0, 5.0], [0.0, 0.0]],
    }
    for pooling in POOLINGS:
        assert pool_rows(rows, offsets, pooling).tolist() == expected[pooling]
    weighted = pool_rows(rows, offsets, "sum", torch.tensor([2.0, -1.0, 0.5]))
    assert weighted.tolist() == [[0.0, 0.0], [-1.0, 14.0], [2.5, 2.5], [0.0, 0.0]]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_may_lie_outside_the_table(pooling):
    table = draw(NUM_ROWS, 3, seed=8)
    padded = Bag(torch.tensor([[4, -1, 1], [-1, -1, -1], [2, 2, -1]]))
    short = Bag(torch.tensor([4, 1, 2, 2]), torch.tensor([0, 2, 2]))
    ours = look_up_and_pool(table, padded, pooling, padding_id=-1)
    assert torch.equal(ours, look_up_and_pool(table, short, pooling))


@given(ragged_bags, st.none() | ids)
def test_flat_lists_the_ids_of_each_bag_in_order_without_padding(bags, padding_id):
    values, offsets = ragged(bags)
    weights = torch.arange(values.numel(), dtype=torch.float32)
    flat = Bag(values, offsets, weights).flat(padding_id)
    kept = [[key for key in bag if key != padding_id] for bag in bags]
    expected_values, expected_offsets = ragged(kept)
    assert torch.equal(flat.values, expected_values)
    assert flat.offsets is not None
    assert torch.equal(flat.offsets, expected_offsets)
    assert flat.weights is not None
    assert torch.equal(values[flat.weights.long()], flat.values)
    assert flat.batch_size == len(bags)


@pytest.mark.parametrize(
    ("bag", "batch_size", "is_one_id_each"),
    [
        (Bag(torch.tensor([1, 2, 3])), 3, True),
        (Bag(torch.tensor([1, 2, 3]), weights=torch.ones(3)), 3, False),
        (Bag(torch.tensor([[1, 2, 3]])), 1, False),
        (Bag(torch.tensor([[1], [2]])), 2, False),
        (Bag(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 2])), 3, False),
        (Bag(torch.tensor([1, 2, 3]), torch.tensor([0, 0, 0, 3, 3])), 5, False),
        (Bag(torch.empty(0, dtype=torch.int64)), 0, True),
    ],
)
def test_the_batch_size_counts_bags(bag, batch_size, is_one_id_each):
    assert bag.batch_size == batch_size
    assert bag.flat().batch_size == batch_size
    assert bag.is_one_id_each is is_one_id_each


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_batches_and_empty_bags_pool_to_zeros(shape, pooling):
    table = draw(NUM_ROWS, 2, seed=10)
    pooled = look_up_and_pool(table, Bag(torch.empty(shape, dtype=torch.int64)), pooling)
    assert torch.equal(pooled, torch.zeros(shape[0], 2, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(pooled.sum(), table)
    assert not gradient.any()


def test_rows_keep_their_type_whatever_that_of_the_weights():
    rows, offsets = torch.ones(3, 2, dtype=torch.bfloat16), torch.tensor([0, 2])
    pooled = pool_rows(rows, offsets, "sum", torch.tensor([1.0, 2.0, 4.0]))
    assert pooled.dtype == torch.bfloat16
    assert pooled.tolist() == [[3.0, 3.0], [4.0, 4.0]]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 2], "the first offset must be 0, but got 1"),
        ([-1, 2], "the first offset must be 0, but got -1"),
        ([0, 3, 2], "offsets must not decrease or exceed the number of ids, 4"),
        ([0, 5], "offsets must not decrease or exceed the number of ids, 4"),
        ([], "4 ids but no offsets: they belong to no bag"),
    ],
)
def test_offsets_that_cut_no_bags_are_refused(offsets, message):
    with pytest.raises(DataError, match=message):
        Bag(torch.tensor([1, 2, 3, 4]), torch.tensor(offsets, dtype=torch.int64))


@settings(deadline=None)
@given(st.lists(st.integers(-2, 6), min_size=1, max_size=5))
def test_offsets_are_accepted_exactly_when_they_cut_every_id_into_a_bag(offsets):
    values = torch.tensor([1, 2, 3, 4])
    if offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] <= 4:
        assert Bag(values, torch.tensor(offsets)).batch_size == len(offsets)
    else:
        with pytest.raises(DataError):
            Bag(values, torch.tensor(offsets))


def test_offsets_go_with_flat_ids_only():
    with pytest.raises(DataError, match=r"but got \(2, 2\) and \(2,\)"):
        Bag(torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1]))


@pytest.mark.parametrize("shape", [(), (2, 2, 2)])
def test_ids_of_other_shapes_are_no_bags(shape):
    with pytest.raises(DataError, match="are not bags"):
        Bag(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 1)])
def test_weights_of_another_shape_are_refused(shape):
    with pytest.raises(DataError, match=r"do not fit ids of shape \(4,\): give one weight"):
        Bag(torch.tensor([1, 2, 3, 4]), weights=torch.ones(shape))


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_weights_are_for_sums_only(pooling):
    with pytest.raises(
        ConfigError, match=f"weights need sum pooling, but the pooling is '{pooling}'"
    ):
        pool_rows(torch.ones(2, 1), torch.tensor([0]), pooling, torch.ones(2))
    with pytest.raises(ConfigError, match="weights need sum pooling"):
        pool_rows(torch.ones(0, 1), torch.tensor([0]), pooling, torch.ones(0))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("given", [[1, 2], (1, 2), np.array([1, 2]), 1])
def test_ids_and_offsets_that_are_no_tensors_are_refused(given):
    kind = type(given).__name__
    table = build_table("full", TableSpec("ad", num_rows=9, dim=4))
    with pytest.raises(DataError, match=f"'ad': ids must be a tensor, but got a {kind}"):
        table(given)
    with pytest.raises(DataError, match=f"^ids must be a tensor, but got a {kind}"):
        table.bag(given)
    with pytest.raises(DataError, match=f"^offsets must be a tensor, but got a {kind}"):
        table.bag(torch.tensor([1, 2]), given)

"""`outsize.nn.EmbeddingBag` equals `torch.nn.EmbeddingBag` on the same rows."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import outsize
from outsize.errors import ConfigError, DataError, IdError
from outsize.spec import TableSpec

LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=6)
MODES = st.sampled_from(["sum", "mean", "max"])
DTYPES = st.sampled_from([torch.int32, torch.int64])
PADDINGS = st.sampled_from([None, 0, -1])


def pair(mode, padding_idx, include_last_offset=False):
    """The same bag, torch's and ours."""
    theirs = nn.EmbeddingBag(
        6, 3, mode=mode, padding_idx=padding_idx, include_last_offset=include_last_offset
    )
    ours = outsize.nn.EmbeddingBag(
        6, 3, None, 2.0, False, mode, False, None, include_last_offset, padding_idx, method="full"
    )
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def assert_equal(theirs, ours, *inputs):
    expected, found = theirs(*inputs), ours(*inputs)
    torch.testing.assert_close(found, expected)
    factors = torch.randn_like(expected)
    (expected * factors).sum().backward()
    (found * factors).sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


@given(
    lengths=LENGTHS, mode=MODES, padding_idx=PADDINGS, last=st.booleans(), dtype=DTYPES,
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60)
def test_flat_bags_equal_torch(lengths, mode, padding_idx, last, dtype, seed):
    torch.manual_seed(seed)
    ids = torch.randint(6, (sum(lengths),), dtype=dtype)
    ends = torch.tensor([0, *lengths]).cumsum(0).to(dtype)
    assert_equal(*pair(mode, padding_idx, last), ids, ends if last else ends[:-1])


@given(
    num_bags=st.integers(0, 4), length=st.integers(1, 4), mode=MODES, padding_idx=PADDINGS,
    last=st.booleans(), dtype=DTYPES, seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60)
def test_bags_of_one_length_equal_torch(num_bags, length, mode, padding_idx, last, dtype, seed):
    torch.manual_seed(seed)
    ids = torch.randint(6, (num_bags, length), dtype=dtype)
    assert_equal(*pair(mode, padding_idx, last), ids)


@given(lengths=LENGTHS, padding_idx=PADDINGS, flat=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_weights_per_id_equal_torch(lengths, padding_idx, flat, seed):
    torch.manual_seed(seed)
    theirs, ours = pair("sum", padding_idx)
    ids = torch.randint(6, (sum(lengths),) if flat else (len(lengths), 3))
    offsets = torch.tensor([0, *lengths[:-1]]).cumsum(0) if flat else None
    factors = torch.randn(ids.shape)
    ones, others = (factors.clone().requires_grad_() for _ in range(2))
    theirs(ids, offsets, ones).square().sum().backward()
    ours(ids, offsets, others).square().sum().backward()
    torch.testing.assert_close(others.grad, ones.grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("method", outsize.TABLES)
def test_every_method_pools_as_its_rows_in_torch_do(method, mode):
    budget = {} if method == "full" else {"max_bytes": 4_000}
    module = outsize.nn.EmbeddingBag(
        200, 8, mode=mode, padding_idx=1, include_last_offset=True, method=method, **budget
    )
    if method != "full":
        assert 2_500 < module.memory_use().total_bytes <= 4_000
    ids, offsets = torch.tensor([5, 1, 7, 7, 199]), torch.tensor([0, 2, 2, 5])
    torch.testing.assert_close(module(ids, offsets), module.materialize()(ids, offsets))
    assert repr(module).startswith("EmbeddingBag(\n  200, 8, padding_idx=1, method=")
    copied = copy.deepcopy(module)
    assert torch.equal(copied(ids, offsets), module(ids, offsets))


def test_what_is_no_bag_is_refused(unchecked_shapes):
    module = outsize.nn.EmbeddingBag(20, 4, max_params=40)
    ids = torch.tensor([1, 2])
    with pytest.raises(DataError, match="flat ids need offsets"):
        module(ids)
    with pytest.raises(DataError, match="are bags already: give no offsets"):
        module(ids.view(1, 2), torch.tensor([0]))
    with pytest.raises(DataError, match="the first offset must be 0"):
        module(ids, torch.tensor([1]))
    with pytest.raises(DataError, match="offsets must be int32 or int64"):
        module(ids, torch.tensor([0.0]))
    with pytest.raises(ConfigError, match="weights need sum pooling"):
        module(ids, torch.tensor([0]), torch.ones(2))
    with pytest.raises(IdError, match="id 20 is outside"):
        module(torch.tensor([20]), torch.tensor([0]))
    module.include_last_offset = True
    with pytest.raises(DataError, match="offsets end with the number of ids, but are empty"):
        module(ids[:0], ids[:0])


def test_a_mode_that_does_not_exist_is_refused(unchecked_shapes):
    with pytest.raises(ConfigError, match="mode must be one of sum, mean, max, but got 'median'"):
        outsize.nn.EmbeddingBag(20, 4, mode="median", max_params=40)


def test_settings_that_ids_which_share_parameters_cannot_keep_are_refused():
    for extra in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        with pytest.raises(ConfigError, match=r"outsize\.nn\.EmbeddingBag: "):
            outsize.nn.EmbeddingBag(20, 4, max_params=40, **extra)


@pytest.mark.parametrize("freeze", [True, False])
def test_pretrained_rows_are_quantized(freeze):
    rows = torch.randn(300, 8)
    module = outsize.nn.EmbeddingBag.from_pretrained(rows, freeze, mode="sum", max_bytes=5_000)
    assert module.method == "pq"
    assert module.memory_use().total_bytes <= 5_000
    assert module.table.weight.requires_grad is not freeze
    ids = torch.arange(300).view(-1, 3)
    exact = nn.EmbeddingBag.from_pretrained(rows, mode="sum")(ids)
    assert (module(ids) - exact).square().mean() < 0.01 * exact.var()


def test_a_bag_and_an_embedding_may_share_a_table():
    table = outsize.build_table("cce", TableSpec("item", 50, 4), max_params=100)
    bag = outsize.nn.EmbeddingBag.from_table(table, "sum")
    embedding = outsize.nn.Embedding.from_table(table)
    ids = torch.tensor([[3, 4], [5, 5]])
    torch.testing.assert_close(bag(ids), embedding(ids).sum(dim=1))

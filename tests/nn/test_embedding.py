"""`outsize.nn.Embedding` behaves as `torch.nn.Embedding` does, within a budget."""

import copy
import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import outsize
from outsize.errors import BudgetError, ConfigError, DataError, IdError, NonFiniteError
from outsize.nn.rows import pq_size
from outsize.spec import Budget, Init, TableSpec


def made(method="cce", num_embeddings=200, embedding_dim=8, **settings):
    budget = {} if method == "full" else {"max_bytes": 4_000}
    return outsize.nn.Embedding(
        num_embeddings, embedding_dim, method=method, **{**budget, **settings}
    )


@pytest.mark.parametrize("name", ["__init__", "from_pretrained"])
@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_the_arguments_are_those_of_torch_in_their_order(kind, name):
    theirs = inspect.signature(getattr(getattr(nn, kind), name)).parameters
    ours = inspect.signature(getattr(getattr(outsize.nn, kind), name)).parameters
    shared = [ours[argument] for argument in theirs]
    assert list(ours)[: len(theirs)] == list(theirs)
    assert [a.default for a in shared] == [a.default for a in theirs.values()]


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    padding_idx=st.sampled_from([None, 0, 7, -1]),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_a_full_one_equals_torch_forward_and_backward(shape, padding_idx, dtype, seed):
    torch.manual_seed(seed)
    theirs = nn.Embedding(20, 4, padding_idx)
    ours = made("full", 20, 4, padding_idx=padding_idx)
    ours.load_state_dict(theirs.state_dict())
    assert ours.padding_idx == theirs.padding_idx
    ids = torch.randint(20, shape, dtype=dtype)
    factors = torch.randn(*shape, 4)
    for module in (theirs, ours):
        (module(ids) * factors).sum().backward()
    assert torch.equal(ours(ids), theirs(ids))
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


@pytest.mark.parametrize("method", outsize.TABLES)
def test_every_method_maps_ids_to_vectors_within_its_bytes(method):
    module = made(method, padding_idx=-1)
    ids = torch.tensor([[0, 5, 199], [199, 199, 2]], dtype=torch.int32)
    vectors = module(ids)
    assert vectors.shape == (2, 3, 8)
    assert torch.equal(vectors, module(ids.long()))
    assert not vectors[ids == 199].any()
    assert vectors[ids != 199].all(dim=-1).all()
    assert (module.num_embeddings, module.embedding_dim, module.padding_idx) == (200, 8, 199)
    if method != "full":
        assert 2_500 < module.memory_use().total_bytes <= 4_000
    assert f"200, 8, padding_idx=199, method={method!r}" in repr(module)
    equivalent = module.materialize()
    torch.testing.assert_close(equivalent(ids), vectors)
    assert equivalent.padding_idx == 199
    assert equivalent.weight.requires_grad


@pytest.mark.parametrize("method", ["full", "cce", "low-rank"])
def test_padding_is_exactly_zero_and_gets_no_gradient(method):
    module = made(method, padding_idx=3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    module(torch.tensor([3, 3])).sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in module.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        (module(torch.arange(200)) - 1).square().sum().backward()
        optimizer.step()
    assert torch.equal(module(torch.tensor(3)), torch.zeros(8))


def test_vectors_start_as_those_of_torch_or_as_asked():
    assert 0.9 < made("hash", 2_000, max_bytes=32_000)(torch.arange(2_000)).std() < 1.1
    small = made("hash", 2_000, max_bytes=32_000, init=Init(std=0.01))
    assert 0.008 < small(torch.arange(2_000)).std() < 0.012


def test_the_seed_of_torch_decides_where_none_is_given():
    ids = torch.arange(200)
    torch.manual_seed(5)
    one, other = made()(ids), made()(ids)
    torch.manual_seed(5)
    assert torch.equal(made()(ids), one)
    assert not torch.equal(one, other)
    assert torch.equal(made(seed=3)(ids), made(seed=3)(ids))


def test_ids_that_are_out_of_range_or_no_integers_are_refused(unchecked_shapes):
    module = made()
    with pytest.raises(IdError, match="id 200 is outside 0 … 199"):
        module(torch.tensor([0, 200]))
    with pytest.raises(DataError, match=r"must be int32 or int64, but got torch\.float32"):
        module(torch.zeros(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_norm": 1.0}, "max_norm=1 rescales the row of one id"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq scales the gradient of one id"),
        ({"sparse": True}, "gradients of a compressed table are dense"),
        ({"padding_idx": 200}, "padding_idx must be between -200 and 199"),
        ({"method": "pq"}, "'pq' compresses trained rows: use from_pretrained"),
        ({"method": "cc"}, "no table method 'cc'. Did you mean 'cce'"),
        ({"max_bytes": None}, "needs a budget"),
        ({"max_params": 100}, "max_params or as max_bytes"),
        ({"max_bytes": 32, "padding_idx": 0}, "padding row alone needs 32 bytes"),
        ({"column": 2}, "a cce table has no option 'column'"),
        ({"method": "full", "max_bytes": 100}, "a full table needs 6,400 bytes"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_words(settings, message):
    with pytest.raises(ConfigError, match=message):
        made(**settings)


def test_a_full_one_may_have_sparse_gradients():
    module = made("full", sparse=True)
    module(torch.tensor([1, 2])).sum().backward()
    assert module.weight.grad.is_sparse
    assert module.sparse
    assert not made().sparse


def test_a_compressed_one_says_why_it_has_no_weight():
    module = made()
    assert not hasattr(module, "weight")
    with pytest.raises(AttributeError, match=r"method 'cce' has no weight .*\.materialize\(\)"):
        module.weight  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'wait'"):
        module.wait  # noqa: B018
    full = made("full")
    assert full.weight is full.table.weight


@pytest.mark.parametrize("method", ["full", "cce", "robe"])
def test_a_copy_and_a_state_dict_hold_everything(method):
    module = made(method, padding_idx=0)
    ids = torch.arange(200)
    copied, loaded = copy.deepcopy(module), made(method, padding_idx=0, seed=77)
    assert not torch.equal(loaded(ids), module(ids))
    loaded.load_state_dict(module.state_dict())
    for other in (copied, loaded):
        assert torch.equal(other(ids), module(ids))
    copied(ids).sum().backward()
    assert all(p.grad is None for p in module.parameters())


def test_the_weight_of_a_torch_checkpoint_is_refused_by_a_compressed_table():
    state = {"emb.weight": torch.randn(200, 8)}
    model = nn.ModuleDict({"emb": made()})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"emb\.weight"'):
        model.load_state_dict(state)
    assert model.load_state_dict(state, strict=False).unexpected_keys == ["emb.weight"]


def test_dtype_and_device_are_those_of_the_table():
    module = made(padding_idx=0, dtype=torch.float64, device="cpu")
    assert module(torch.tensor([0, 1])).dtype == torch.float64
    assert module.to(torch.bfloat16)(torch.tensor([0, 1])).dtype == torch.bfloat16
    empty = made(padding_idx=0, device="meta", seed=1)
    assert all(tensor.is_meta for tensor in empty.state_dict().values())
    filled = made(padding_idx=0, seed=2)
    empty.load_state_dict(filled.state_dict(), assign=True)
    assert torch.equal(empty(torch.arange(200)), filled(torch.arange(200)))


def test_reclustering_resets_the_moments_of_its_optimizer():
    module = made()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.arange(200)).square().sum().backward()
        optimizer.step()
    before = module.table.weight
    report = module.recluster(optimizer)
    assert report.num_clusters == module.table.num_codes
    assert module.table.weight is before
    assert not optimizer.state[before]
    assert made("hash").recluster(optimizer) is None


@pytest.mark.parametrize("method", ["pq", *outsize.TABLES])
def test_pretrained_rows_are_kept_as_well_as_the_method_allows(method):
    rows = torch.randn(6, 8).repeat(50, 1) + 0.01 * torch.randn(300, 8)
    rows[4] = 100.0
    budget = {} if method == "full" else {"max_bytes": 5_000}
    module = outsize.nn.Embedding.from_pretrained(
        rows, padding_idx=4, method=method, seed=0, **budget
    )
    others = torch.arange(300) != 4
    assert torch.equal(module(torch.tensor(4)), rows[4])
    error = (module(torch.arange(300)) - rows)[others].square().mean()
    limit = {"full": 0.0, "pq": 1e-4, "cce": 1e-3}.get(method, float(rows[others].var()))
    assert error <= limit
    assert not any(p.requires_grad for p in module.parameters())
    if method != "full":
        assert module.memory_use().total_bytes <= 5_000


def test_pretrained_rows_can_be_trained_further():
    rows = torch.randn(300, 8, dtype=torch.float64)
    module = outsize.nn.Embedding.from_pretrained(rows, freeze=False, columns=2, codes=16)
    assert module.table.weight.shape == (16, 8)
    module(torch.arange(5)).sum().backward()
    assert module.table.weight.grad.dtype == torch.float64
    shared = module.table.weight.untyped_storage().data_ptr()
    assert shared != rows.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, ConfigError, "a pq table needs a budget"),
        ({"max_bytes": 300}, BudgetError, "smallest pq table needs 364 bytes"),
        ({"max_bytes": 900, "codes": 256}, BudgetError, "4 columns and 256 codes needs"),
        ({"max_bytes": 900, "code": 256}, ConfigError, "a pq table has no option 'code'"),
        ({"method": "none"}, ConfigError, "no table method 'none'"),
    ],
)
def test_pretrained_rows_need_a_size_that_exists(settings, error, message):
    with pytest.raises(error, match=message):
        outsize.nn.Embedding.from_pretrained(torch.zeros(300, 8), **settings)


def test_rows_that_are_none_are_refused(unchecked_shapes):
    make = outsize.nn.Embedding.from_pretrained
    with pytest.raises(DataError, match=r"got the shape \(3,\)"):
        make(torch.zeros(3), max_bytes=100)
    with pytest.raises(DataError, match="int64"):
        make(torch.zeros(3, 3, dtype=torch.int64), max_bytes=100)
    with pytest.raises(NonFiniteError, match="NaN or infinity"):
        make(torch.full((300, 8), torch.inf), max_bytes=1_000)
    with pytest.raises(DataError, match=r"expected rows of the shape \(3, 2\)"):
        outsize.nn.Embedding(3, 2, _weight=torch.zeros(2, 2), method="full")


@given(num_rows=st.integers(1, 5_000), dim=st.integers(1, 24), max_bytes=st.integers(1, 300_000))
@settings(max_examples=60)
def test_the_columns_of_a_quantizer_give_an_id_the_most_bits_within_the_bytes(
    num_rows, dim, max_bytes
):
    affordable = {
        columns: min(256, num_rows, (max_bytes - num_rows * columns) // (4 * dim))
        for columns in range(1, dim + 1)
        if dim % columns == 0
    }
    least = min(2, num_rows)
    bits = [c * math.log2(codes) for c, codes in affordable.items() if codes >= least]
    try:
        columns, codes = pq_size(TableSpec("table", num_rows, dim), Budget(max_bytes=max_bytes))
    except BudgetError:
        assert not bits
    else:
        assert codes == affordable[columns]
        assert columns * math.log2(codes) == max(bits)


def test_a_module_over_a_table_shares_it():
    table = outsize.build_table("robe", TableSpec("item", 50, 4), max_params=100)
    one, other = (outsize.nn.Embedding.from_table(table, padding) for padding in (None, 3))
    assert one.method == other.method == "robe"
    assert one.table is other.table
    assert torch.equal(one(torch.tensor(3)), table(torch.tensor(3)))
    assert not other(torch.tensor(3)).any()

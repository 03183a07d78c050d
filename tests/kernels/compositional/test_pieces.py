"""Compositional look-ups, compiled: the numbers of torch, and gradients up to rounding."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import outsize
from outsize.kernels.compositional import pieces
from outsize.tables.packed_cce import PackedCCETable

pytest.importorskip("numba")
NUM_IDS = 700
CASES = [
    ("ce-concat", {"columns": 4}, 16),
    ("ce-concat", {"columns": 3}, 7),
    ("ce-hybrid", {"columns": 4}, 16),
    ("ce-hybrid", {"columns": 2}, 5),
    ("cce", {"columns": 4}, 16),
    ("cce", {"columns": 4, "shared": False}, 16),
    ("cce", {"columns": 3, "shared": False}, 7),
    ("circular", {"columns": 2}, 6),
    ("hash", {}, 16),
    ("hash", {}, 7),
    ("robe", {"columns": 4}, 16),
    ("robe", {"columns": 3, "signs": True}, 7),
]


def step(table, ids, weights):
    table.weight.grad = None
    vectors = table(ids)
    (vectors * weights).sum().backward()
    return vectors.detach(), table.weight.grad


@pytest.mark.parametrize(("method", "options", "dim"), CASES)
@pytest.mark.parametrize("max_params", [200, 20_000])
def test_a_compiled_look_up_equals_torchs(monkeypatch, method, options, dim, max_params):
    spec = outsize.TableSpec("ad", NUM_IDS, dim)
    table = outsize.build_table(method, spec, max_params=min(max_params, 60 * dim + 37), **options)
    some, equal = torch.randint(0, NUM_IDS, (500,)), torch.zeros(9, dtype=torch.int64)
    for ids in (some, equal, some[:1], some[:0]):
        weights = torch.randn(ids.shape[0], dim)
        monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
        expected, gradient = step(table, ids, weights)
        monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
        found, found_gradient = step(table, ids, weights)
        assert torch.equal(found, expected)
        torch.testing.assert_close(found_gradient, gradient, rtol=1e-4, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    method=st.sampled_from(["ce-concat", "ce-hybrid", "cce", "circular", "robe", "hash"]),
    dim=st.one_of(st.integers(2, 19), st.sampled_from([32, 33, 64, 75, 128])),
    columns=st.integers(2, 8),
    num_rows=st.integers(1, 40),
    num_ids=st.sampled_from([0, 1, 2, 255, 256, 257, 600, 2049]),
    is_one_id=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape_equals_torchs(method, dim, columns, num_rows, num_ids, is_one_id, seed):
    """Also where the last block of ids is short, and pieces wrap around or are wide."""
    draw = torch.Generator().manual_seed(seed)
    options = {} if method == "hash" else {"columns": min(columns, dim)}
    options |= {"signs": seed % 2 == 1} if method == "robe" else {}
    spec = outsize.TableSpec("ad", NUM_IDS, dim)
    cap = (num_rows + 2) * dim
    table = outsize.build_table(method, spec, max_params=cap, seed=seed, **options)
    ids = torch.randint(0, 1 if is_one_id else NUM_IDS, (num_ids,), generator=draw)
    weights = torch.randn(num_ids, dim, generator=draw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTSIZE_KERNELS", "torch")
        expected, gradient = step(table, ids, weights)
        patch.setenv("OUTSIZE_KERNELS", "numba")
        found, found_gradient = step(table, ids, weights)
    assert torch.equal(found, expected)
    torch.testing.assert_close(found_gradient, gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("num_codes", [100, 300, 70_000])
def test_pointers_of_every_width_are_read(monkeypatch, num_codes):
    spec = outsize.TableSpec("ad", 300_000, 4)
    table = outsize.build_table("cce", spec, max_params=2 * num_codes, columns=2)
    ids = torch.randint(0, 300_000, (100,))
    codes = table.encode(ids)
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
    expected = table(ids)
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    assert torch.equal(table(ids), expected)
    assert torch.equal(table.decode(codes), expected)


@pytest.mark.filterwarnings("ignore:.*collapse")  # of tables with so few codes
@settings(max_examples=40, deadline=None)
@given(
    dim=st.integers(1, 20),
    columns=st.integers(1, 6),
    num_buckets=st.sampled_from([2, 3, 9, 40, 300, 5_000]),
    num_slots=st.sampled_from([2, 17, 100, 699, 700]),
    is_clustered=st.booleans(),
    helper=st.booleans(),
    num_ids=st.sampled_from([0, 1, 256, 600]),
    seed=st.integers(0, 1000),
)
@example(
    dim=1, columns=1, num_buckets=2, num_slots=17, is_clustered=True, helper=False, num_ids=0,
    seed=0,
)  # fmt: skip
def test_packed_pointers_are_read_as_by_torch(
    dim, columns, num_buckets, num_slots, is_clustered, helper, num_ids, seed
):
    """Pointers of 1 to 15 bits; slots for all ids or for some; before and after a clustering."""
    draw = torch.Generator().manual_seed(seed)
    spec = outsize.TableSpec("ad", NUM_IDS, dim)
    table = PackedCCETable(
        spec, num_buckets=num_buckets, num_slots=num_slots, columns=min(columns, dim), seed=seed
    )
    if is_clustered:
        counts = torch.randint(0, 5, (NUM_IDS,), generator=draw)
        table.recluster(counts=counts, helper=helper, iterations=1)
    ids = torch.randint(0, NUM_IDS, (num_ids,), generator=draw)
    ids[:1] = NUM_IDS - 1  # whose pointers are the last bits
    weights = torch.randn(num_ids, dim, generator=draw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTSIZE_KERNELS", "torch")
        expected, gradient = step(table, ids, weights)
        patch.setenv("OUTSIZE_KERNELS", "numba")
        found, found_gradient = step(table, ids, weights)
    assert torch.equal(found, expected)
    torch.testing.assert_close(found_gradient, gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("max_params", [640, 40_000])  # with several sums, and with one
def test_gradients_do_not_depend_on_the_number_of_threads(monkeypatch, max_params):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    table = outsize.build_table("cce", outsize.TableSpec("ad", 5000, 16), max_params=max_params)
    ids, weights = torch.randint(0, 5000, (3000,)), torch.randn(3000, 16)
    vectors, gradients = [], []
    for parts in (1, 3):
        monkeypatch.setattr(pieces, "num_parts", lambda *_, parts=parts: parts)
        some, gradient = step(table, ids, weights)
        vectors.append(some)
        gradients.append(gradient)
    assert torch.equal(*vectors)
    assert torch.equal(*gradients)


def test_gradients_of_gradients(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    table = outsize.build_table("robe", outsize.TableSpec("ad", 50, 4), max_params=20)
    (first,) = torch.autograd.grad(
        table(torch.arange(50)).pow(3).sum(), table.weight, create_graph=True
    )
    (second,) = torch.autograd.grad(first.sum(), table.weight)
    (counts,) = torch.autograd.grad(table(torch.arange(50)).sum(), table.weight)
    torch.testing.assert_close(second, 6 * table.weight.detach() * counts, rtol=1e-4, atol=1e-4)


def test_other_types_are_left_to_torch(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    table = outsize.build_table("cce", outsize.TableSpec("ad", 50, 4), max_params=40)
    expected = table(torch.arange(50))
    assert torch.allclose(table.double()(torch.arange(50)).float(), expected)

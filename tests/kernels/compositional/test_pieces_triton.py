"""Compositional look-ups on CUDA: the numbers of torch, and gradients up to rounding."""

from pathlib import Path

import pytest
import torch
from interpreted import needs_triton, run_interpreted
from look_ups import (
    CASES,
    PACKED,
    assert_step_equals_torchs,
    batch_of,
    packed_table,
    step,
    table_of,
    torchs_slots,
)

import outsize
from outsize.hashing import draw_hashes
from outsize.kernels.compositional.slots import SlotMap, found_slots
from outsize.tables.id_slots import slot_map

TUNINGS = {
    "in order": {"enough_programs": 1, "most_programs": 40},
    "in order, short blocks": {"enough_programs": 1, "block": 32, "warps": 1},
    "in any order": {"enough_programs": 1 << 20, "most_blocks": 0},
}


@needs_triton
def test_triton_look_ups_equal_torchs_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_pieces_triton.py"))


@pytest.mark.gpu
@pytest.mark.parametrize(("method", "options", "dim"), CASES)
@pytest.mark.parametrize("max_params", [200, 20_000])
def test_a_look_up_on_cuda_equals_torchs(method, options, dim, max_params):
    table = table_of(method, options, dim, max_params).cuda()
    for num_ids in (0, 1, 63, 5_000):
        assert_step_equals_torchs(table, *batch_of(num_ids, dim, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize(("num_buckets", "num_slots"), PACKED)
@pytest.mark.parametrize("is_clustered", [False, True])
def test_packed_pointers_on_cuda_are_read_as_by_torch(num_buckets, num_slots, is_clustered):
    table = packed_table(num_buckets, num_slots, is_clustered=is_clustered).cuda()
    assert_step_equals_torchs(table, *batch_of(3_000, 12, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["cce", "robe"])
def test_short_floats_are_looked_up_on_cuda(method, dtype):
    """Gradients are sums in float32, so they equal those of float32 weights."""
    table = table_of(method, {}, 64, 20_000).cuda()
    ids, gradient = batch_of(2_000, 64, "cuda")
    gradient = gradient.to(dtype)
    _, expected = step(table, ids, gradient.float())
    table.to(dtype)
    found, found_gradient = step(table, ids, gradient)
    assert found.dtype == found_gradient.dtype == dtype
    torch.testing.assert_close(found_gradient, expected.to(dtype), rtol=2e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("num_ids", [4_000, 300_000])
@pytest.mark.parametrize("size", [2_048, 16_384])
@pytest.mark.parametrize("method", ["cce", "ce-concat", "robe"])
def test_gradients_on_cuda_are_the_same_every_time(method, size, num_ids):
    table = outsize.build_table(method, outsize.TableSpec("ad", 700, 64), max_params=size).cuda()
    ids, gradient = batch_of(num_ids, 64, "cuda")
    _, first = step(table, ids, gradient)
    for _ in range(5):
        assert torch.equal(step(table, ids, gradient)[1], first)


@pytest.mark.gpu
def test_gradients_of_large_tables_on_cuda_can_be_repeated(monkeypatch):
    """Where sums in order take too long, torch's deterministic mode is asked."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    table = outsize.build_table(
        "cce", outsize.TableSpec("ad", 300_000, 64), max_params=4_000_000
    ).cuda()
    ids = torch.randint(0, 300_000, (200_000,), device="cuda")
    gradient = torch.randn(200_000, 64, device="cuda")
    assert_step_equals_torchs(table, ids, gradient)
    torch.use_deterministic_algorithms(True)
    try:
        _, first = step(table, ids, gradient)
        assert torch.equal(step(table, ids, gradient)[1], first)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
def test_gradients_of_gradients_on_cuda():
    table = outsize.build_table("robe", outsize.TableSpec("ad", 50, 4), max_params=20).cuda()
    ids = torch.arange(50, device="cuda")
    cubes = table(ids).pow(3).sum()
    (first,) = torch.autograd.grad(cubes, table.weight, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), table.weight)
    (counts,) = torch.autograd.grad(table(ids).sum(), table.weight)
    torch.testing.assert_close(second, 6 * table.weight.detach() * counts, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [3, 7, 16])
@pytest.mark.parametrize("tuning", TUNINGS.values(), ids=TUNINGS)
def test_every_tuning_gives_the_same_sums_at_every_width(monkeypatch, tuning, width):
    """Strides that are not powers of two among them, which a compiler once got wrong."""
    from outsize.kernels.compositional import composed_triton

    wanted = composed_triton.Tuning(**tuning)
    monkeypatch.setattr(composed_triton, "tuning_for", lambda places: wanted)
    for method, options in (("cce", {}), ("cce", {"shared": False}), ("robe", {}), ("hash", {})):
        columns = {} if method == "hash" else {"columns": 4}
        table = table_of(method, {**options, **columns}, 4 * width, 4_000).cuda()
        assert_step_equals_torchs(table, *batch_of(9_000, 4 * width, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize(("num_rows", "num_own"), [(257, 200), (70_000, 30_000), (10**6, 9)])
def test_slots_on_cuda_are_those_of_torch(num_rows, num_own):
    own = torch.randperm(num_rows)[:num_own].sort().values
    ids = torch.cat([own, torch.randint(0, num_rows, (5_000,))]).cuda()
    parts = (*slot_map(own, num_rows), draw_hashes(2, 0))
    slots = SlotMap(*(part.cuda() for part in parts), 7, 2 * num_rows)
    assert torch.equal(found_slots(ids, slots), torchs_slots(ids, slots))

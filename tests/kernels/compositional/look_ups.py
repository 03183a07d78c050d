"""Tables, ids and gradients with which fast look-ups are compared with torch's."""

import os
from contextlib import contextmanager

import torch

import outsize
from outsize.hashing import hash_ids
from outsize.tables.id_slots import find_slots
from outsize.tables.packed_cce import PackedCCETable

NUM_IDS = 700
CASES = [
    ("hash", {}, 16),
    ("hash", {}, 7),
    ("ce-concat", {"columns": 4}, 64),
    ("ce-concat", {"columns": 3}, 7),
    ("ce-hybrid", {"columns": 4}, 16),
    ("ce-hybrid", {"columns": 2}, 5),
    ("cce", {"columns": 4}, 64),
    ("cce", {"columns": 4, "shared": False}, 16),
    ("cce", {"columns": 3, "shared": False}, 7),
    ("circular", {"columns": 2}, 6),
    ("robe", {"columns": 4}, 16),
    ("robe", {"columns": 3, "signs": True}, 7),
    ("robe", {"columns": 1, "signs": True}, 33),
]
PACKED = [(9, 700), (300, 700), (40, 17), (5_000, 100)]  # rows and slots


def table_of(method, options, dim, max_params):
    spec = outsize.TableSpec("ad", NUM_IDS, dim)
    return outsize.build_table(method, spec, max_params=min(max_params, 60 * dim + 37), **options)


def packed_table(num_buckets, num_slots, *, is_clustered, helper=True):
    table = PackedCCETable(
        outsize.TableSpec("ad", NUM_IDS, 12), num_buckets=num_buckets, num_slots=num_slots
    )
    if is_clustered:
        table.recluster(counts=torch.arange(NUM_IDS) % 5, helper=helper, iterations=1)
    return table


def batch_of(num_ids, dim, device="cpu"):
    """Ids, one of them very often, and the gradient of their vectors."""
    draw = torch.Generator().manual_seed(num_ids)
    ids = torch.randint(0, NUM_IDS, (num_ids,), generator=draw)
    ids[::3] = NUM_IDS - 1
    gradient = torch.randn(num_ids, dim, generator=draw)
    return ids.to(device), gradient.to(device)


@contextmanager
def torchs():
    """Leave all work to torch."""
    before = os.environ.get("OUTSIZE_KERNELS")
    os.environ["OUTSIZE_KERNELS"] = "torch"
    try:
        yield
    finally:
        del os.environ["OUTSIZE_KERNELS"]
        if before is not None:
            os.environ["OUTSIZE_KERNELS"] = before


def step(table, ids, gradient):
    """Vectors, and the gradient of the weights."""
    table.weight.grad = None
    vectors = table(ids)
    vectors.backward(gradient.to(vectors.dtype))
    return vectors.detach(), table.weight.grad


def assert_step_equals_torchs(table, ids, gradient, tolerance=2e-4):
    with torchs():
        expected, expected_gradient = step(table, ids, gradient)
    found, found_gradient = step(table, ids, gradient)
    assert torch.equal(found, expected)
    assert found_gradient.dtype == table.weight.dtype
    torch.testing.assert_close(
        found_gradient, expected_gradient, rtol=tolerance, atol=tolerance * len(ids) ** 0.5
    )


def torchs_slots(ids, slot_map):
    """What torch finds for `found_slots`."""
    found, is_own = find_slots(ids, slot_map.starts, slot_map.lows)
    hashed = hash_ids(ids + slot_map.offset, slot_map.hashes[:1], slot_map.num_shared).squeeze(1)
    return torch.where(is_own, found, slot_map.lows.shape[0] + hashed)

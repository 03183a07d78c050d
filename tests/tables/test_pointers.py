import pytest
import torch

from outsize.hashing import draw_hashes, hash_ids
from outsize.tables.pointers import hashed_pointers, pack, pointer_type, unpack


@pytest.mark.parametrize(
    ("num_codes", "expected"),
    [
        (1, torch.uint8),
        (256, torch.uint8),
        (257, torch.int16),
        (65_536, torch.int16),
        (65_537, torch.int32),
        (1 << 31, torch.int32),
    ],
)
def test_the_smallest_type_that_holds_all_codes(num_codes, expected):
    dtype = pointer_type(num_codes)
    assert dtype == expected
    ends = torch.tensor([0, num_codes // 2, num_codes - 1])
    assert torch.equal(unpack(pack(ends, dtype)), ends)


def test_pointers_without_clustering_are_hashes():
    hashes = draw_hashes(3, seed=5)
    packed = hashed_pointers(300_000, hashes, 1000)
    assert packed.dtype == torch.int16
    ids = torch.tensor([0, 1, 262_143, 262_144, 299_999])
    assert torch.equal(unpack(packed[ids]), hash_ids(ids, hashes, 1000))

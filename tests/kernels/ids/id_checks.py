"""Batches of good and bad ids with which the kernel is compared with torch."""

import os

import torch

from outsize.kernels.ids.checked import NONE, checked_ids

BOUNDS = [5, 1 << 40, 300]


def by_torch(ids, bounds, worst):
    before = os.environ.get("OUTSIZE_KERNELS", "")
    os.environ["OUTSIZE_KERNELS"] = "torch"
    try:
        return checked_ids(ids, bounds, worst)
    finally:
        os.environ["OUTSIZE_KERNELS"] = before


def assert_equals_the_reference(device):
    from outsize.kernels.ids.checked_triton import checked_by_triton

    draw = torch.Generator().manual_seed(0)
    for num, columns in ((1, 1), (1_025, 1), (700, 3), (3, 2)):
        bounds = torch.tensor(BOUNDS[:columns], device=device)
        ids = torch.randint(-2, 310, (num, columns), generator=draw)
        ids[0, 0] = 1 << 50
        for batch in (ids.to(device), ids.t().contiguous().to(device).t(), ids.to(device) * 0):
            worst, expected_worst = (torch.full_like(bounds, NONE) for _ in range(2))
            worst[-1] = expected_worst[-1] = 305
            expected = by_torch(batch, bounds, expected_worst)
            assert torch.equal(checked_by_triton(batch, bounds, worst), expected)
            assert torch.equal(worst, expected_worst)

"""Ids out of bounds become 0, and the greatest of them is kept."""

from pathlib import Path

import pytest
import torch
from id_checks import assert_equals_the_reference
from interpreted import needs_triton, run_interpreted

from outsize.kernels.ids.checked import NONE, checked_ids


def test_bad_ids_become_0_and_the_worst_of_each_column_is_kept():
    bounds, worst = torch.tensor([3, 5]), torch.tensor([NONE, 7])
    ids = torch.tensor([[2, 4], [3, 5], [-1, 0], [9, -8]])
    assert checked_ids(ids, bounds, worst).tolist() == [[2, 4], [0, 0], [0, 0], [0, 0]]
    assert worst.tolist() == [9, 7]


def test_no_ids_are_good():
    worst = torch.tensor([NONE])
    assert checked_ids(torch.empty(0, 1, dtype=torch.int64), torch.tensor([3]), worst).shape == (
        0,
        1,
    )
    assert worst.tolist() == [NONE]


@needs_triton
def test_the_kernel_equals_torch_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_checked_triton.py"))


@pytest.mark.gpu
def test_the_kernel_equals_torch_on_cuda():
    assert_equals_the_reference("cuda")

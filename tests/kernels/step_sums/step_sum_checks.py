"""Checks of the Triton kernel for sums of steps, for the interpreter and CUDA."""

import math

import pytest
import torch

from outsize.kernels.step_sums.step_sums import add_step

STEPS = [(0.5, 2.0), (1e30, 1e38), (-3.25, 0.0), (0.1, 1.0)]
FLAWS = [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.inf), (1.0, math.nan)]


def added(add, steps, device):
    losses = torch.zeros((), dtype=torch.float64, device=device)
    count = torch.zeros((), dtype=torch.int64, device=device)
    for step in steps:
        add(losses, count, *(torch.tensor(number, device=device) for number in step))
    return float(losses), int(count)


def assert_steps_are_added(device="cpu"):
    """The kernel adds and counts as torch does, until a step is flawed and ever after."""
    from outsize.kernels.step_sums.step_sums_triton import add_step_by_triton

    assert added(add_step_by_triton, STEPS, device) == added(add_step, STEPS, "cpu")
    for flaw in FLAWS:
        steps = [*STEPS[:2], flaw, *STEPS[2:]]
        total, count = added(add_step_by_triton, steps, device)
        expected, expected_count = added(add_step, steps, "cpu")
        assert count == expected_count == 2
        assert total == pytest.approx(expected, nan_ok=True)

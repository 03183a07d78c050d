import math

import pytest
import torch
from draw_checks import normal, surprise

from outsize.kernels.softmax.inversion import pick

LAST_UNIFORM = 1 - 2.0**-53
INF = math.inf


def picked(log_masses, *uniforms):
    found = pick(torch.tensor([log_masses]), torch.tensor([uniforms], dtype=torch.float64))
    return found[0].tolist()


def test_indices_are_drawn_in_proportion_to_their_masses():
    log_masses = normal(3, 50) * 3
    uniforms = torch.rand(3, 100_000, dtype=torch.float64)
    for line, found in zip(log_masses, pick(log_masses, uniforms), strict=True):
        assert surprise(torch.bincount(found, minlength=50), line.double().softmax(0)) > 1e-7


def test_running_sums_are_passed_where_they_should_be():
    thirds = [0.0, 0.0, 0.0]
    assert picked(thirds, 0.0, 0.333, 0.334, 0.666, 0.667, LAST_UNIFORM) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("scale", [0.0, 1e4, -1e4, 1e38])
def test_what_has_no_mass_is_never_drawn(scale):
    log_masses = [-INF, -INF, scale, -INF, scale, -INF]
    assert picked(log_masses, 0.0, 0.5 - 2**-30, 0.5, LAST_UNIFORM) == [2, 2, 4, 4]


def test_masses_too_small_for_float32_are_still_drawn():
    # 2^17 equal masses of e^-20 beside one of 1: a float32 sum would not grow by them.
    log_masses = torch.full((1, 1 + (1 << 17)), -20.0)
    log_masses[0, 0] = 0.0
    uniforms = torch.rand(1, 1 << 20, dtype=torch.float64)
    share = (pick(log_masses, uniforms) > 0).double().mean().item()
    expected = (1 << 17) * math.exp(-20) / (1 + (1 << 17) * math.exp(-20))
    assert abs(share - expected) < 6 * math.sqrt(expected / (1 << 20))


@pytest.mark.parametrize("bad", [[-INF, -INF], [0.0, math.nan], [INF, 0.0]])
def test_lines_that_cannot_be_drawn_from_give_minus_one(bad):
    lines = torch.tensor([bad, [0.0, -INF]])
    assert pick(lines, torch.rand(2, 4, dtype=torch.float64)).tolist() == [[-1] * 4, [0] * 4]

"""Drawing an index in proportion to masses, given as logarithms, by inverse transform sampling.

One uniform number of 53 bits selects the index at which the cumulative sum of masses, in float64,
exceeds it. The probabilities are exact to about 2⁻⁵⁰ of the total for any masses. Gumbel-Max needs
a random number per element instead, and its precision is limited by the tail of that number.

Systematic draws use k equally spaced numbers for the k draws of a query. An index with probability
p is then drawn ⌊kp⌋ or ⌈kp⌉ times. Its expectation is still kp, so sums over the draws have the
same expectation, and usually less variance, than with independent numbers.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor


def systematic_uniforms(
    num_lines: int, num: int, generator: torch.Generator
) -> Float64[Tensor, "lines num"]:
    """Equally spaced numbers in [0, 1) per line: the fractional part of u + i/num.

    Sorted, they are (i + v)/num for one v. Each number of a line is uniform by itself.
    """
    device = generator.device
    start = torch.rand(num_lines, 1, dtype=torch.float64, device=device, generator=generator)
    steps = torch.arange(num, dtype=torch.float64, device=device) / max(1, num)
    return (start + steps).frac_()


def pick(
    log_masses: Float32[Tensor, "lines n"], uniforms: Float64[Tensor, "lines num"]
) -> Int64[Tensor, "lines num"]:
    """For each uniform number of a line, draw an index in proportion to `exp(log_masses)`.

    An index without mass is never drawn. A line without mass, or with NaN or +inf, gives −1.

    Args:
        log_masses: At least one per line; −inf for no mass.
        uniforms: In [0, 1).
    """
    return _search(*_cumulative(log_masses), uniforms)


def pick_with_rest(
    log_masses: Float32[Tensor, "lines n"], uniforms: Float64[Tensor, "lines num"]
) -> tuple[Int64[Tensor, "lines num"], Float64[Tensor, "lines num"]]:
    """As `pick`; also returns where in the mass of its index each number lies, in [0, 1).

    Given the index, that is uniform again: it can pick within the index, at the next level of a
    tree. Picking level by level with it is picking once from all leaves in their order.
    """
    sums, is_drawable = _cumulative(log_masses)
    picked = _search(sums, is_drawable, uniforms)
    place = picked.clamp(0, log_masses.shape[1] - 1)
    before = torch.where(place > 0, sums.gather(1, (place - 1).clamp_min_(0)), 0.0).clamp_min_(0.0)
    mass = sums.gather(1, place) - before
    rest = (uniforms * sums[:, -1:] - before) / mass
    return picked, rest.nan_to_num_(0.0).clamp_(0.0, 1 - 2.0**-53)


def _cumulative(
    log_masses: Float32[Tensor, "lines n"],
) -> tuple[Float64[Tensor, "lines n"], Bool[Tensor, "lines 1"]]:
    """The cumulative sums of masses, the largest about 1, and whether a line has any."""
    peak = log_masses.amax(dim=1, keepdim=True)
    is_drawable = peak.isfinite()
    masses = torch.where(is_drawable, log_masses - peak, -torch.inf).double().exp_()
    sums = masses.cumsum(dim=1)
    if not sums.is_cpu:
        # By rounding, a parallel sum may grow where no mass is added, or shrink; this undoes it.
        sums = torch.where(masses > 0, sums, -1.0).cummax(dim=1).values
    return sums, is_drawable


def _search(
    sums: Float64[Tensor, "lines n"],
    is_drawable: Bool[Tensor, "lines 1"],
    uniforms: Float64[Tensor, "lines num"],
) -> Int64[Tensor, "lines num"]:
    # The largest number below 1 times the total rounds to less than the total.
    found = torch.searchsorted(sums, uniforms * sums[:, -1:], right=True)
    return torch.where(is_drawable, found, -1)

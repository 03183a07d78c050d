"""Picks in proportion to masses in Triton, by inverting a cumulative sum in float64.

The counterpart of `outsize.kernels.softmax.inversion`.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def log_sum(logits, AXIS: tl.constexpr):
    """The log-sum-exp along an axis; −inf where nothing has mass."""
    peak = tl.max(logits, axis=AXIS)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    return peak + tl.log(tl.sum(tl.exp(logits - tl.expand_dims(peak, AXIS)), axis=AXIS))


@triton.jit
@no_type_check
def relative_masses(log_masses):
    """Masses in float64, the largest about 1, and their cumulative sum."""
    masses = tl.exp(log_masses - tl.max(log_masses, axis=0)).to(tl.float64)
    return masses, tl.cumsum(masses, axis=0)


@triton.jit
@no_type_check
def pick(log_masses, uniform, LENGTH: tl.constexpr):
    """An index in proportion to `exp(log_masses)`, never one without mass; −1 if none has any."""
    masses, sums = relative_masses(log_masses)
    return pick_mass(masses, sums, uniform, LENGTH)


@triton.jit
@no_type_check
def pick_mass(masses, sums, uniform, LENGTH: tl.constexpr):
    """`pick`, given what `relative_masses` returns."""
    place = tl.arange(0, LENGTH)
    has_mass = masses > 0
    # By rounding, a parallel sum may grow where no mass is added, and the target may reach the
    # total. Hence the tests of mass, and the last index with mass as a bound.
    passed = has_mass & (sums > uniform * tl.sum(masses, axis=0))
    first = tl.min(tl.where(passed, place, LENGTH), axis=0)
    return tl.minimum(first, tl.max(tl.where(has_mass, place, -1), axis=0))


@triton.jit
@no_type_check
def rest_of(log_masses, uniform, picked, LENGTH: tl.constexpr):
    """Where in the mass of the picked index the number lies, in [0, 1)."""
    masses, sums = relative_masses(log_masses)
    is_picked = tl.arange(0, LENGTH) == picked
    mass = tl.sum(tl.where(is_picked, masses, 0.0), axis=0)
    before = tl.sum(tl.where(is_picked, sums - masses, 0.0), axis=0)
    rest = (uniform * tl.sum(masses, axis=0) - before) / tl.where(mass > 0, mass, 1.0)
    return tl.minimum(tl.maximum(rest, 0.0), 1 - 2.0**-53)

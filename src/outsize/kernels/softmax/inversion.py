"""Drawing an index in proportion to masses, given as logarithms, by inverse transform sampling.

One uniform number of 53 bits selects the index at which the cumulative sum of masses, in float64,
exceeds it. The probabilities are exact to about 2⁻⁵⁰ of the total for any masses. Gumbel-Max needs
a random number per element instead, and its precision is limited by the tail of that number.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor


def pick(
    log_masses: Float32[Tensor, "lines n"], uniforms: Float64[Tensor, "lines num"]
) -> Int64[Tensor, "lines num"]:
    """For each uniform number of a line, draw an index in proportion to `exp(log_masses)`.

    An index without mass is never drawn. A line without mass, or with NaN or +inf, gives −1.

    Args:
        log_masses: At least one per line; −inf for no mass.
        uniforms: In [0, 1).
    """
    peak = log_masses.amax(dim=1, keepdim=True)
    is_drawable = peak.isfinite()
    masses = torch.where(is_drawable, log_masses - peak, -torch.inf).double().exp_()
    sums = masses.cumsum(dim=1)
    if not sums.is_cpu:
        # By rounding, a parallel sum may grow where no mass is added, or shrink; this undoes it.
        sums = torch.where(masses > 0, sums, -1.0).cummax(dim=1).values
    # The largest number below 1 times the total rounds to less than the total.
    targets = uniforms * sums[:, -1:]
    found = torch.searchsorted(sums, targets, right=True)
    return torch.where(is_drawable, found, -1)

"""Checks of the points and weights passed to k-means."""

from __future__ import annotations

import torch
from torch import Tensor

from outsize.errors import ConfigError, DataError, NonFiniteError

_LARGEST = 1e15  # squared distances far beyond this would overflow float32


def check_points(points: Tensor, name: str) -> None:
    """Raise an error unless `points` is a finite float tensor of shape (columns, n, dim)."""
    if points.ndim != 3 or not points.is_floating_point() or points.shape[2] < 1:
        raise ConfigError(
            f"{name} must be floats of shape (columns, n, dim) with dim >= 1, "
            f"but got {points.dtype} of shape {tuple(points.shape)}"
        )
    if points.numel() == 0:
        return
    least, most = (bound.item() for bound in torch.aminmax(points))
    if not (least > -float("inf") and most < float("inf")):
        raise NonFiniteError(f"{name} hold NaN or infinity; clean them before clustering")
    if max(-least, most) > _LARGEST:
        raise DataError(
            f"{name} reach {max(-least, most):.3g}, beyond {_LARGEST:g}; scale them down"
        )


def check_weights(weights: Tensor, num_points: int) -> None:
    """Raise an error unless `weights` is one finite number >= 0 per point, and one is positive."""
    if weights.shape != (num_points,):
        raise ConfigError(
            f"weights must have one value per point, {num_points:,} in all, "
            f"but got the shape {tuple(weights.shape)}"
        )
    least, most = (bound.item() for bound in torch.aminmax(weights))
    if not (least > -float("inf") and most < float("inf")):
        raise NonFiniteError("weights hold NaN or infinity; give every point a finite weight >= 0")
    if least < 0:
        raise DataError(f"weights must be >= 0, but one is {least:g}")
    if most == 0:
        raise DataError("all weights are 0: nothing to cluster; give some point a weight > 0")

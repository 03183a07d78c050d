"""The exponent of a power law, fitted to measurements."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def slope_of_logs(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of log y against log x, by least squares: b if y ≈ a·xᵇ."""
    logs = torch.tensor([list(x), list(y)], dtype=torch.float64).log()
    across, up = logs - logs.mean(dim=1, keepdim=True)
    return float((across * up).sum() / across.square().sum())

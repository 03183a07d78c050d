"""Linear maps from the vectors of an older model to those of a newer one.

Vectors that were encoded by both models show how the older ones moved. A matrix M that maps old to
new vectors by ridge regression, min ‖X M − Y‖² + λ‖M − I‖², corrects the others without encoding
them. It is applied only if it brings vectors that it was not fitted on closer to their new ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

_HELD_OUT = 5  # every fifth pair measures the error


@dataclass(frozen=True)
class LinearMap:
    """A map from old to new vectors, with its error on pairs that it was not fitted on.

    Attributes:
        matrix: Old vectors are multiplied by it from the right.
        before: Mean of ‖old − new‖² / ‖new‖² on these pairs.
        after: The same for mapped vectors.
    """

    matrix: Float32[Tensor, "dim dim"]
    before: float
    after: float

    @property
    def helps(self) -> bool:
        """Whether mapped vectors are closer to the new ones than old vectors are."""
        return self.after < self.before

    def __call__(self, vectors: Float32[Tensor, "n dim"]) -> Float32[Tensor, "n dim"]:
        """Vectors mapped to the newer model, each as long as it was."""
        mapped = vectors @ self.matrix
        lengths = vectors.norm(dim=1, keepdim=True)
        scaled: Tensor = mapped * (lengths / mapped.norm(dim=1, keepdim=True).clamp(min=1e-12))
        return scaled


def fit_map(
    old: Float32[Tensor, "n dim"], new: Float32[Tensor, "n dim"], strength: float = 1.0
) -> LinearMap | None:
    """Fit a map to pairs of vectors; `None` if there are too few to measure it.

    Args:
        old: Vectors of the older model.
        new: Vectors of the same items by the newer model.
        strength: λ, in multiples of the mean squared length of old vectors.
    """
    if len(old) < 2 * _HELD_OUT:
        return None
    is_held_out = torch.arange(len(old)) % _HELD_OUT == 0
    x, y = old[~is_held_out].double(), new[~is_held_out].double()
    weight = strength * x.square().sum(dim=1).mean().clamp(min=1e-12)
    eye = torch.eye(old.shape[1], dtype=torch.float64)
    matrix = torch.linalg.solve(x.T @ x + weight * eye, x.T @ y + weight * eye).float()
    tried = LinearMap(matrix, 0.0, 0.0)
    x, y = old[is_held_out], new[is_held_out]
    before, after = (_error(vectors, y) for vectors in (x, tried(x)))
    return LinearMap(matrix, before, after)


def _error(vectors: Tensor, wanted: Tensor) -> float:
    lengths = wanted.square().sum(dim=1).clamp(min=1e-12)
    return float(((vectors - wanted).square().sum(dim=1) / lengths).mean())

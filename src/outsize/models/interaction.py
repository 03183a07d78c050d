"""The dot products of all pairs of vectors: the interaction of DLRM."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.kernels.arrays import is_untraced


class Interaction(nn.Module):
    """Dot products of pairs: those of the second vector with the first, of the third with both, …

    The gradient is one gather and one matrix product per example: with the gradients of the
    products as a symmetric matrix S without a diagonal, that of the vectors V is S V.

    Args:
        num_vectors: Vectors per example.
    """

    pairs: Tensor
    mirrored: Tensor

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        row, column = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        pair = torch.arange(len(row))
        mirrored = torch.zeros(num_vectors, num_vectors, dtype=torch.int64)
        mirrored[row, column] = mirrored[column, row] = pair
        self.register_buffer("pairs", row * num_vectors + column, persistent=False)
        self.register_buffer("mirrored", mirrored.flatten(), persistent=False)

    @property
    def num_pairs(self) -> int:
        """Number of products."""
        return self.pairs.numel()

    def forward(
        self, vectors: Float[Tensor, "batch num_vectors dim"]
    ) -> Float[Tensor, "batch num_pairs"]:
        """The products of each example."""
        is_own = torch.compiler.is_dynamo_compiling() or is_untraced(vectors)
        if not (is_own and self.num_pairs and vectors.requires_grad and torch.is_grad_enabled()):
            return _products(vectors, self.pairs)
        products: Tensor = _Products.apply(vectors, self.pairs, self.mirrored)
        return products


def _products(vectors: Tensor, pairs: Tensor) -> Tensor:
    return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)


class _Products(torch.autograd.Function):
    """`_products`; torch's own gradient adds to zeros, and multiplies twice."""

    @staticmethod
    def forward(
        ctx: Any,
        vectors: Float[Tensor, "batch num_vectors dim"],
        pairs: Int64[Tensor, " num_pairs"],
        mirrored: Int64[Tensor, " squared"],
    ) -> Tensor:
        ctx.save_for_backward(vectors, mirrored)
        return _products(vectors, pairs)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        vectors, mirrored = ctx.saved_tensors
        num = vectors.shape[1]
        symmetric = gradients.index_select(1, mirrored).unflatten(1, (num, num))
        symmetric.diagonal(dim1=1, dim2=2).zero_()  # where `mirrored` has any pair
        # Under autocast the products, and so their gradients, have fewer bits than the vectors.
        return torch.bmm(symmetric, vectors.to(symmetric.dtype)).to(vectors.dtype), None, None

"""The dot products of all pairs of vectors: the interaction of DLRM."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from outsize.kernels.arrays import is_untraced
from outsize.kernels.available import uses_triton


class Interaction(nn.Module):
    """Dot products of pairs: those of the second vector with the first, of the third with both, …

    The gradient is one gather and one matrix product per example: with the gradients of the
    products as a symmetric matrix S without a diagonal, that of the vectors V is S V. On CUDA, one
    Triton kernel computes the products, and one their gradient.

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
        self,
        vectors: Float[Tensor, "batch others dim"],
        first: Float[Tensor, "batch dim"] | None = None,
    ) -> Float[Tensor, "batch width"]:
        """The products of each example, after its first vector if that is given.

        Args:
            vectors: The vectors, or those besides the first.
            first: The first vector, whose dtype the others are multiplied in.
        """
        if first is not None:
            vectors = vectors.to(first.dtype)
        if _is_for_triton(vectors, first):
            features: Tensor = _Features.apply(vectors, first, self.mirrored)
            return features
        if first is None:
            return self._products(vectors)
        return torch.cat((first, self._products(_joined(vectors, first))), dim=1)

    def _products(self, vectors: Tensor) -> Tensor:
        is_own = torch.compiler.is_dynamo_compiling() or is_untraced(vectors)
        if not (is_own and self.num_pairs and vectors.requires_grad and torch.is_grad_enabled()):
            return _products(vectors, self.pairs)
        products: Tensor = _Products.apply(vectors, self.pairs, self.mirrored)
        return products


def _is_for_triton(vectors: Tensor, first: Tensor | None) -> bool:
    """Whether Triton kernels multiply these vectors, in the precision that torch would."""
    if not uses_triton(*((vectors,) if first is None else (vectors, first))):
        return False
    from outsize.kernels.interaction.interaction_triton import fits_registers

    is_cast = torch.is_autocast_enabled("cuda") and vectors.dtype == torch.float32
    return not is_cast and fits_registers(vectors, first)


def _joined(vectors: Tensor, first: Tensor) -> Tensor:
    return torch.cat((first.unsqueeze(1), vectors), dim=1)


def _products(vectors: Tensor, pairs: Tensor) -> Tensor:
    return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)


def _gradients(gradients: Tensor, vectors: Tensor, mirrored: Tensor) -> Tensor:
    """The gradients of vectors, given those of their products."""
    num = vectors.shape[1]
    symmetric = gradients.index_select(1, mirrored).unflatten(1, (num, num))
    symmetric.diagonal(dim1=1, dim2=2).zero_()  # where `mirrored` has any pair
    # Under autocast the products, and so their gradients, have fewer bits than the vectors.
    return torch.bmm(symmetric, vectors.to(symmetric.dtype)).to(vectors.dtype)


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
        return _gradients(gradients, vectors, mirrored), None, None


class _Features(torch.autograd.Function):
    """`Interaction` by Triton."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, first: Tensor | None, mirrored: Tensor) -> Tensor:
        from outsize.kernels.interaction.interaction_triton import interact_by_triton

        ctx.save_for_backward(vectors, first, mirrored)
        return interact_by_triton(vectors, first)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        from outsize.kernels.interaction.interaction_triton import gradients_by_triton

        vectors, first, mirrored = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return *gradients_by_triton(gradients, vectors, first), None
        if first is None:  # with a gradient of its own
            return _gradients(gradients, vectors, mirrored), None, None
        dim = first.shape[1]
        found = _gradients(gradients[:, dim:], _joined(vectors, first), mirrored)
        return found[:, 1:], found[:, 0] + gradients[:, :dim], None

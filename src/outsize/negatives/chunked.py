"""Encoding a batch of any size in the memory of a chunk.

GradCache (Gao et al. 2021) encodes without keeping activations, finds the gradient of the loss in
the embeddings, and encodes each chunk once more to send that gradient on. Recomputing each chunk in
the backward pass is the same thing in autograd's own words, whatever loss comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Encode = Callable[[Mapping[str, Tensor]], Tensor]


def in_chunks(encode: Encode, chunk_size: int | None) -> Encode:
    """The same encoder, a chunk of rows at a time, each encoded again in the backward pass.

    Gradients are those of one whole pass, dropout included: a chunk's random numbers are drawn
    again as they were.

    Args:
        encode: Features `(n, …)` by name → embeddings `(n, dim)`.
        chunk_size: Rows in a chunk; `None` leaves the encoder as it is.
    """
    if chunk_size is None:
        return encode

    def encode_chunks(features: Mapping[str, Tensor]) -> Tensor:
        columns = zip(*(values.split(chunk_size) for values in features.values()), strict=True)
        chunks = [dict(zip(features, column, strict=True)) for column in columns]
        if len(chunks) == 1:
            return encode(chunks[0])
        if not torch.is_grad_enabled():
            return torch.cat([encode(chunk) for chunk in chunks])
        return torch.cat([checkpoint(encode, chunk, use_reentrant=False) for chunk in chunks])

    return encode_chunks

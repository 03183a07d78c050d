"""GradCache: encode a large batch in the memory of one chunk.

GradCache (Gao et al. 2021) encodes all chunks without storing activations, computes the gradient of
the loss with respect to the embeddings, and encodes each chunk again to backpropagate it. Gradient
checkpointing per chunk does the same within autograd, for any loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Encode = Callable[[Mapping[str, Tensor]], Tensor]


def in_chunks(encode: Encode, chunk_size: int | None) -> Encode:
    """Wrap an encoder so that it works in chunks, with gradient checkpointing (GradCache).

    Each chunk is encoded again in the backward pass. Gradients equal those of encoding the batch as
    a whole; dropout masks are the same in both passes of a chunk.

    Args:
        encode: Features `(n, …)` by name → embeddings `(n, dim)`.
        chunk_size: Examples per chunk; `None` returns the encoder unchanged.
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

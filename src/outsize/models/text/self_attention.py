"""A layer of a small transformer encoder over padded sequences."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from outsize.errors import ConfigError


class SelfAttention(nn.Module):
    """Self-attention and an MLP, each added to its input, which is normalized first.

    Args:
        dim: Width of a vector.
        heads: Heads of the attention; they divide `dim`.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ConfigError(
                f"heads must divide embeddings.dim, but got {heads} heads for a width of {dim}"
            )
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.projections = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(
        self, x: Float[Tensor, "batch length dim"], is_token: Bool[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length dim"]:
        """Attend to the tokens of each sequence; what is at padding is not used."""
        batch, length, dim = x.shape
        shape = (batch, length, 3, self.heads, dim // self.heads)
        query, key, value = self.projections(self.norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(
            query, key, value, attn_mask=is_token[:, None, None, :]
        )
        x = x + self.output(found.transpose(1, 2).reshape(batch, length, dim))
        mixed: Tensor = x + self.mlp(self.mlp_norm(x))
        return mixed

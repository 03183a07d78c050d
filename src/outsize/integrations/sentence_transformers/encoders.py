"""The model of a loss: its wrappers, its tokenizer, and texts of a cache encoded by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor, nn

from outsize.errors import ConfigError
from outsize.integrations.sentence_transformers.tokens import LENGTH, padded


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without wrappers for data parallelism and compilation."""
    inner = getattr(model, "module", getattr(model, "_orig_mod", None))
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def refuse_truncating_losses(model: nn.Module) -> None:
    """Raise if a loss around this one replaces forward passes by ones that cut embeddings."""
    for module in (model, *unwrapped(model).children()):
        if type(vars(module).get("forward")).__module__.startswith("sentence_transformers."):
            raise ConfigError(
                "NegativeCacheLoss cannot be wrapped in MatryoshkaLoss or AdaptiveLayerLoss: they "
                "would write truncated embeddings into the cache; train without them"
            )


def normalized(embeddings: Float[Tensor, "n dim"]) -> Float32[Tensor, "n dim"]:
    """Embeddings of length 1, in float32."""
    return F.normalize(embeddings.float(), dim=1)


def embed(
    model: nn.Module, features: Mapping[str, Tensor], shared: Mapping[str, Any]
) -> Float32[Tensor, "n dim"]:
    """Encode texts of a cache in one forward pass.

    Args:
        model: The model, or a wrapper of it.
        features: The texts, as a cache holds them.
        shared: What holds for all texts, such as the length of the prompt.
    """
    tokenizer = getattr(unwrapped(model), "tokenizer", None)
    side = getattr(tokenizer, "padding_side", "right")
    pad_id = getattr(tokenizer, "pad_token_id", 0) or 0
    return normalized(model(padded(features, shared, side, pad_id))["sentence_embedding"])


def embed_in_chunks(
    model: nn.Module,
    features: Mapping[str, Tensor],
    shared: Mapping[str, Any],
    chunk_size: int,
    dim: int,
) -> Float32[Tensor, "n dim"]:
    """Encode any number of texts without the wrappers, those of similar length together."""
    lengths, model = features[LENGTH], unwrapped(model)
    if not len(lengths):
        return torch.empty(0, dim, device=lengths.device)
    order = lengths.argsort(descending=True, stable=True)
    parts = [
        embed(model, {name: values[part] for name, values in features.items()}, shared)
        for part in order.split(chunk_size)
    ]
    encoded = torch.cat(parts)
    return torch.empty_like(encoded).index_copy_(0, order, encoded)

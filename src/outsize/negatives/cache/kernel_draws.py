"""`NegativeCache.sample` on CUDA: draws that look up, exclude and copy what is held in one go.

The general path is `ItemCache.sample`: a dozen small operations around the draw, whose launches
take longer than the draw itself for few queries. Nothing here synchronizes the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from outsize.errors import ConfigError
from outsize.kernels.softmax.draws import softmax_mean
from outsize.negatives.cache.contract import DrawOptions, scaled_by
from outsize.negatives.cache.draw import Draw
from outsize.negatives.cache.pair_logits import pair_logits
from outsize.negatives.cache.stored_items import StoredItems

if TYPE_CHECKING:
    from outsize.negatives.cache.negative_cache import NegativeCache


def sample_by_kernels(
    cache: NegativeCache,
    queries: Float[Tensor, "batch dim"],
    beta: float | Tensor,
    options: DrawOptions,
) -> Draw:
    """`ItemCache.sample` for at least one query, by Triton."""
    from outsize.kernels.softmax.triton.draw_launches import draw_held_by_triton

    queries = queries.detach()
    if queries.dim() != 2 or queries.shape[1] != cache.dim:
        raise ConfigError(f"queries must be (batch, {cache.dim}), but got {tuple(queries.shape)}")
    lists = options.exclude
    if lists is not None and lists.num_lines != len(queries):
        raise ConfigError(
            f"exclude must have a list for each of {len(queries)} queries, but got "
            f"{lists.num_lines}"
        )
    if options.num < 0:
        raise ConfigError(f"num must not be negative, but got {options.num}")
    items, held = cache.scored(options.exclude_everywhere), cache.held_keys()
    found = draw_held_by_triton(
        queries,
        beta.detach() if isinstance(beta, Tensor) else beta,
        items,
        held,
        options.num,
        cache.next_generator(options.advance),
        lists,
        options.systematic,
    )
    drawn = found.draws
    mean = pairs = None
    if options.with_mean:
        excluded = None if lists is None else lists.with_values(cache.rows_of(lists.values))
        mean = softmax_mean(found.rounded.float(), items, drawn.log_partition, excluded)
    rows = drawn.rows.flatten()
    features = {
        name: values.view(*drawn.rows.shape, *values.shape[1:])
        for name, values in cache.items.features_at(rows).items()
    }
    if options.with_pairs:
        embeddings = StoredItems(found.embeddings.flatten(0, 1), None, {})
        scaled = scaled_by(queries, beta)
        if items.vectors.dtype != torch.float32:
            scaled = found.rounded.float()
        pairs = pair_logits(scaled, drawn, found.keys.flatten(), embeddings, lists)
    return Draw(
        rows=drawn.rows,
        keys=found.keys,
        features=features,
        embeddings=found.embeddings,
        ages=found.ages,
        logits=drawn.logits,
        log_partition=drawn.log_partition,
        uniforms=found.uniforms,
        mean_embedding=mean,
        pair_logits=pairs,
    )

"""Small embeddings and batches for click models."""

from __future__ import annotations

import torch

import outsize


def make_embeddings(sizes, dim=4, kind="store"):
    specs = [outsize.TableSpec(name, size, dim) for name, size in sizes.items()]
    features = [outsize.FeatureSpec(name) for name in sizes]
    if kind == "store":
        return outsize.EmbeddingCollection(features, outsize.LocalStore(specs))
    return outsize.EmbeddingCollection(
        features, {spec.name: outsize.FullTable(spec) for spec in specs}
    )


def make_batch(sizes, num_dense, batch=6):
    generator = torch.Generator().manual_seed(0)
    ids = {n: torch.randint(0, s, (batch,), generator=generator) for n, s in sizes.items()}
    return torch.randn(batch, num_dense, generator=generator), ids

"""The texts of one batch as items: their keys, hard negatives, and anchors that are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.errors import DataError
from outsize.integrations.sentence_transformers.tokens import Column
from outsize.negatives import HeldItems


def token_keys(columns: Sequence[Column]) -> Int64[Tensor, "n items"]:
    """Keys of the positives and of the hard negatives, from their tokens."""
    return torch.stack([column.keys() for column in columns], dim=1)


def label_keys(columns: Sequence[Column], labels: Tensor | None) -> Int64[Tensor, "n items"]:
    """Keys of the positives and of the hard negatives, from the label column."""
    num = len(columns[0].lengths)
    if labels is None or labels.numel() != num * len(columns) or labels.is_floating_point():
        shape = None if labels is None else (tuple(labels.shape), labels.dtype)
        raise DataError(
            f"keys = 'label' needs {len(columns)} integer ids per anchor in the label column, "
            f"but got {shape}"
        )
    return labels.view(num, len(columns)).long()


def hard_negatives(
    columns: Sequence[Mapping[str, Tensor]], keys: Int64[Tensor, "n hard"]
) -> HeldItems:
    """Hard negatives, those of the first anchor first.

    Args:
        columns: The features of each column of hard negatives.
        keys: Their keys.
    """
    features = {
        name: torch.stack([column[name] for column in columns], dim=1).flatten(0, 1)
        for name in columns[0]
    }
    flat = keys.flatten()
    return HeldItems(torch.full_like(flat, -1), flat, features)


def positives_of_equals(
    anchors: Int64[Tensor, " n"], keys: Int64[Tensor, " n"]
) -> Int64[Tensor, "n n"] | None:
    """Keys of the positives of equal anchors, padded with −1; `None` if all anchors differ."""
    if len(torch.unique(anchors)) == len(anchors):
        return None
    return torch.where(anchors.unsqueeze(1) == anchors.unsqueeze(0), keys, -1)

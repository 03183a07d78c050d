"""The items of one batch: positives and hard negatives, identified by their keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.errors import DataError
from outsize.kernels.ragged import Ragged
from outsize.kernels.rows.lines import as_signed
from outsize.negatives.cache.draw import HeldItems
from outsize.negatives.cache.key_index import NO_KEY, is_among, is_repeated
from outsize.negatives.contract import EncodeItems


def require_items(positives: HeldItems, hard: HeldItems | None = None) -> None:
    """Refuse invalid keys, and items with the same key but different features.

    Features padded to two widths are equal if the wider one has only padding beyond the narrower:
    zeros, or values that another feature of the same width masks with zeros.

    Args:
        positives: The positives of a batch, with keys >= 0.
        hard: Hard negatives, the same number per positive; key −1 for none.
    """
    parts = [positives] if hard is None else [positives, hard]
    _require_shapes(parts)
    ordered, order = torch.sort(torch.cat([part.keys for part in parts]), stable=True)
    if len(ordered) and int(ordered[0]) < 0:
        _require_keys(positives, hard)
    is_pair = (ordered[1:] == ordered[:-1]) & (ordered[1:] != NO_KEY)
    place = is_pair.nonzero().flatten()
    if not len(place):
        return
    different = _differ(parts, order[place], order[place + 1])
    if different.any():
        key = int(ordered[place[different][0]])
        raise DataError(
            f"two items of the batch have the key {key} but different features: give each item a "
            "key of its own"
        )


def hard_negative_mask(
    hard: Int64[Tensor, "batch num_hard"],
    keys: Int64[Tensor, " batch"],
    known: Int64[Tensor, "batch n"] | Ragged | None = None,
    batch_keys: Int64[Tensor, " m"] | None = None,
) -> Bool[Tensor, "batch num_hard"]:
    """Which hard negatives count: each item once per query, and no positive of the query.

    Args:
        hard: Keys of each query's hard negatives, −1 for none.
        keys: Keys of the positives.
        known: Keys of the query's other known positives, lists or a matrix padded with −1.
        batch_keys: Keys of in-batch negatives, which every query is compared with already.
    """
    counts = (hard != NO_KEY) & (hard != keys.unsqueeze(1)) & ~is_repeated(hard)
    lists = None if known is None else Ragged.of(known)
    if lists is not None and len(lists.values):
        # Keys may be any int64, and `contains` needs small ones: replace each key by its rank.
        distinct, numbers = torch.unique(
            torch.cat((hard.flatten(), lists.values)), return_inverse=True
        )
        candidates, positives = numbers[: hard.numel()].view_as(hard), numbers[hard.numel() :]
        counts = counts & ~lists.with_values(positives).contains(candidates, len(distinct))
    return counts if batch_keys is None else counts & ~is_among(hard, batch_keys)


def encode_distinct(encode: EncodeItems, parts: Sequence[HeldItems]) -> list[Tensor]:
    """Encode several lists of items in one call of the encoder, each distinct item once.

    An entry without an item (key −1) gets the embedding of the first item.
    """
    keys = torch.cat([part.keys for part in parts])
    keys = torch.where(keys == NO_KEY, keys[:1], keys)
    distinct, place = torch.unique(keys, return_inverse=True)
    first = torch.full_like(distinct, len(keys)).scatter_reduce_(
        0, place, torch.arange(len(keys), device=keys.device), "amin"
    )
    features = {name: _concatenated(parts, name)[first] for name in parts[0].features}
    return list(encode(features)[place].split([len(part.keys) for part in parts]))


def _require_keys(positives: HeldItems, hard: HeldItems | None) -> None:
    if int(positives.keys.min()) < 0:
        raise DataError(f"keys of positives must be >= 0, but got {int(positives.keys.min())}")
    if hard is not None and int(hard.keys.min()) < NO_KEY:
        raise DataError(
            f"keys of hard negatives must be >= 0, or −1 for none, but got {int(hard.keys.min())}"
        )


def _require_shapes(parts: Sequence[HeldItems]) -> None:
    positives, *others = parts
    for part in parts:
        if part.keys.dim() != 1 or part.keys.dtype != torch.int64:
            raise DataError(
                f"keys must be one int64 per item, but got {tuple(part.keys.shape)} of "
                f"{part.keys.dtype}"
            )
        if set(part.features) != set(positives.features):
            raise DataError(
                f"positives have the features {sorted(positives.features)}, but hard negatives "
                f"{sorted(part.features)}: give both the same"
            )
        for name, values in part.features.items():
            if values.dim() != positives.features[name].dim() or len(values) != len(part.keys):
                raise DataError(
                    f"feature {name!r} has the shape {tuple(values.shape)}, but there are "
                    f"{len(part.keys)} keys, and positives have "
                    f"{tuple(positives.features[name].shape)}"
                )
    for part in others:
        num = len(positives.keys)
        if len(part.keys) % num if num else len(part.keys):
            raise DataError(
                f"there are {len(part.keys)} hard negatives for {num} queries: "
                "give each query the same number, with key −1 for none"
            )


def _differ(
    parts: Sequence[HeldItems], one: Int64[Tensor, " n"], other: Int64[Tensor, " n"]
) -> Bool[Tensor, " n"]:
    """Whether two items have different features, given their positions in all parts together."""
    num = len(parts[0].keys)
    is_across = (one < num) != (other < num)
    different = torch.zeros_like(is_across)
    is_padded = None  # whether some feature has only zeros beyond the narrower width
    for name in parts[0].features:
        unequal = _unequal(
            *(as_signed(_concatenated(parts, name))[places] for places in (one, other))
        )
        shapes = [part.features[name].shape[1:] for part in parts]
        if len(set(shapes)) > 1:
            common = tuple(slice(min(sizes)) for sizes in zip(*shapes, strict=True))
            within, anywhere = (
                _any_per_item(unequal[(slice(None), *common)]),
                _any_per_item(unequal),
            )
            zeros = ~anywhere | within
            is_padded = zeros if is_padded is None else is_padded | zeros
            different |= torch.where(is_across, within, anywhere)
        else:
            different |= _any_per_item(unequal)
    return different if is_padded is None else different | (is_across & ~is_padded)


def _unequal(one: Tensor, other: Tensor) -> Bool[Tensor, "n ..."]:
    """Where two tensors differ; NaN equals NaN."""
    unequal = one != other
    return unequal & ~(one.isnan() & other.isnan()) if one.is_floating_point() else unequal


def _any_per_item(flags: Bool[Tensor, "n ..."]) -> Bool[Tensor, " n"]:
    return flags.flatten(1).any(dim=1) if flags.dim() > 1 else flags


def _concatenated(parts: Sequence[HeldItems], name: str) -> Tensor:
    """A feature of all parts, zero-padded to the widest."""
    values = [part.features[name] for part in parts]
    shapes = [tuple(some.shape[1:]) for some in values]
    if len(set(shapes)) > 1:
        widest = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        values = [_zero_padded(some, widest) for some in values]
    return torch.cat(values)


def _zero_padded(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    filled = values.new_zeros(len(values), *shape)
    filled[(slice(None), *map(slice, values.shape[1:]))] = values
    return filled

"""Features of a collection that are looked up together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.contracts.bags import Bag, Codes, require_poolable
from outsize.contracts.ids import IdGuard
from outsize.contracts.layout import RowLayout
from outsize.errors import DataError
from outsize.spec import FeatureSpec, TableSpec

FeatureInput = Tensor | tuple[Tensor, Tensor] | Bag | Codes


class FeatureSelection:
    """Features that are looked up in one call, with the guard of their ids.

    Args:
        features: The features, in the order of the result.
        specs: Table name → table.
    """

    def __init__(self, features: Sequence[FeatureSpec], specs: Mapping[str, TableSpec]) -> None:
        self.features = tuple(features)
        self.guard = IdGuard({f"feature {f.name!r}": specs[f.table].num_rows for f in features})
        self.has_padding = any(f.padding_id is not None for f in features)
        self._offsets: Int64[Tensor, " features"] | None = None

    def columns(self, inputs: Mapping[str, FeatureInput]) -> list[Int64[Tensor, " batch"]] | None:
        """The ids of these features, if each has a tensor of one id per example; else `None`.

        This is the common case, and the quick way to read it; `bags` reads and checks any input.
        """
        if self.has_padding:
            return None
        found: list[Tensor] = []
        for feature in self.features:
            given = inputs.get(feature.name)
            if type(given) is not Tensor or given.dtype is not torch.int64 or given.ndim != 1:
                return None
            found.append(given)
        num = found[0].shape[0]
        return found if all(column.shape[0] == num for column in found) else None

    def bags(
        self, inputs: Mapping[str, FeatureInput], *, allow_codes: bool, allow_ragged: bool = False
    ) -> list[Bag | Codes]:
        """The inputs of these features in a batch, checked to have equally many examples.

        The batch may have other features, too; with `allow_codes`, codes may replace ids; with
        `allow_ragged`, features may have different numbers of examples.
        """
        bags: list[Bag | Codes] = []
        for feature in self.features:
            if feature.name not in inputs:
                raise DataError(
                    f"the batch has no feature {feature.name!r}, but the model reads it: add "
                    "it, or name the features to read with only="
                )
            given = inputs[feature.name]
            if isinstance(given, tuple):
                given = Bag(*given)
            bag = Bag(given) if isinstance(given, Tensor) else given
            if not isinstance(bag, Bag | Codes):
                raise DataError(
                    f"feature {feature.name!r} has a {type(bag).__name__}: give a tensor of ids, "
                    "(values, offsets) or a Bag"
                )
            if isinstance(bag, Codes) and not allow_codes:
                raise DataError(
                    f"feature {feature.name!r} has codes, but its rows live in a store: give ids"
                )
            if isinstance(bag, Codes):
                bag.require_flat(f"feature {feature.name!r}: codes")
            require_poolable(feature.pooling, bag.weights)
            if bags and not allow_ragged and bag.batch_size != bags[0].batch_size:
                raise DataError(
                    f"feature {feature.name!r} has {bag.batch_size} examples, but "
                    f"{self.features[0].name!r} has {bags[0].batch_size}"
                )
            bags.append(bag)
        return bags

    def offsets(self, layout: RowLayout, device: torch.device) -> Int64[Tensor, " features"]:
        """The store id of row 0 of each feature's table; computed once per device."""
        if self._offsets is None or self._offsets.device != device:
            starts = [layout.offsets[f.table] for f in self.features]
            self._offsets = torch.tensor(starts, device=device)
        return self._offsets

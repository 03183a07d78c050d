"""Click models as programs of `torch.export`, for any batch size.

A traced program holds the dense layers and the look-ups, compressed tables included, and runs
without this library: hash functions, pointers and codes are plain tensor operations in it. It takes
what the model takes, with each feature of bags as a tuple `(values, offsets)`. Ids are checked by
assertions of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outsize.errors import ConfigError, ExportError
from outsize.models import ClickModel
from outsize.suggestions import few

TracedInput = Tensor | tuple[Tensor, Tensor]


def trace(model: ClickModel, bags: Sequence[str] = ()) -> torch.export.ExportedProgram:
    """Trace a click model that `outsize.load_exported` returned, in evaluation mode.

    Args:
        model: The model.
        bags: Names of features that have bags of ids, besides those that are known to have them
            because the model was trained on files.

    Returns:
        The program. Its module takes `(dense, ids)` as the model does, for any number of rows, and
        returns the same logits; `torch.export.save` writes it.

    Raises:
        ConfigError: It is not a click model over tables, a feature is unknown, or torch is too old.
        ExportError: torch cannot trace the model, such as one of your own.
    """
    _require_traceable(model, bags)
    dense, ids = example_inputs(model, bags)
    batch = torch.export.Dim("batch")
    shapes = {name: _dynamic(given, batch) for name, given in ids.items()}
    was_training = model.training
    try:
        return torch.export.export(
            model.eval(), (dense, ids), dynamic_shapes=({0: batch}, shapes), strict=False
        )
    except Exception as error:  # torch raises many kinds
        reason = str(error).strip().split("\n")[0][:200]
        raise ExportError(
            f"torch.export cannot trace this {type(model).__name__}: {type(error).__name__}: "
            f"{reason}; run it as it is, by outsize.load_exported"
        ) from error
    finally:
        model.train(was_training)


def example_inputs(
    model: ClickModel, bags: Sequence[str] = ()
) -> tuple[Tensor, dict[str, TracedInput]]:
    """Dense features and ids of three rows, in the form that a traced model takes."""
    with_bags = bag_features(model, bags)
    ids: dict[str, TracedInput] = {}
    for feature in model.embeddings.features:
        if feature.name in with_bags:
            values = torch.zeros(5, dtype=torch.int64)
            ids[feature.name] = (values, torch.tensor([0, 2, 2]))
        else:
            ids[feature.name] = torch.zeros(3, dtype=torch.int64)
    return torch.zeros(3, model.num_dense), ids


def bag_features(model: ClickModel, bags: Sequence[str] = ()) -> set[str]:
    """The features that have bags of ids: those given, and those of the encoding of raw rows."""
    encoder = getattr(model.predictor, "encoder", None)
    if encoder is None:
        return set(bags)
    from outsize.data.encoding.recipe import feature_name

    return {*bags, *map(feature_name, encoder.recipe.multi_valued)}


def _dynamic(given: TracedInput, batch: Any) -> Any:
    if isinstance(given, Tensor):
        return {0: batch}
    return {0: torch.export.Dim.AUTO}, {0: batch}


def _require_traceable(model: Any, bags: Sequence[str]) -> None:
    if not isinstance(model, ClickModel):
        raise ConfigError(
            f"a {type(model).__name__} is not a click model, and only click models are traced"
        )
    if not hasattr(torch.compiler, "is_exporting"):
        raise ConfigError(f"tracing needs torch 2.7 or newer, but this is {torch.__version__}")
    if model.embeddings.store is not None:
        raise ConfigError(
            "the rows of this model are in a store, which cannot be traced: export the run, and "
            "trace what outsize.load_exported returns"
        )
    names = [feature.name for feature in model.embeddings.features]
    for name in bags:
        if name not in names:
            raise ConfigError(f"no feature {name!r}; there are {few(names, name)}")
